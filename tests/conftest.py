"""Settings of the whole suite."""

from hypothesis import settings

# A first call may compile a kernel or import a library; time is measured elsewhere.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")
