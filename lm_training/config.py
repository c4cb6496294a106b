"""A run file as frozen dataclasses: what is trained, on what, how, and what is kept.

`corpus.config.load(path, RunConfig)` reads one. What the source (arXiv:2608.30315, A.4) prints
stands here as a default; what it does not print says so beside the default.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corpus.blend import Blend, BlendSource, load_blend

FROM_PRESET = 0
"""Default of a size that ``[model] preset`` fills in; without a preset it must be given."""


_SIZES = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "kv_channels",
    "ffn_hidden_size",
    "vocab_size",
)


def _at_least_one(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; at least 1 is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of the decoder: RMSNorm before each block, SwiGLU, RoPE, no bias, no dropout."""

    preset: str | None = None
    """Name of a preset function of this module; keys given beside it override its values."""
    num_layers: int = FROM_PRESET
    hidden_size: int = FROM_PRESET
    num_attention_heads: int = FROM_PRESET
    kv_channels: int = FROM_PRESET
    """Width of one head; heads x kv_channels need not equal hidden_size."""
    ffn_hidden_size: int = FROM_PRESET
    """Width of the SwiGLU gate and of its value, each."""
    vocab_size: int = FROM_PRESET
    """Rows of the embedding; rows beyond the tokenizer's vocabulary are padding."""
    tied: bool = False
    """One matrix for input and output embedding. Not printed by the source; untied here."""
    gamma: float = 0.8
    """Every matrix starts with standard deviation d_in^-gamma; 0.5 is the ordinary contrast."""

    def __post_init__(self) -> None:
        if self.preset is not None:
            self._fill_from(self.preset)
        if absent := [name for name in _SIZES if getattr(self, name) == FROM_PRESET]:
            raise ValueError(f"{absent} missing; give them or a preset ({', '.join(PRESETS)})")
        _at_least_one(self, *_SIZES)
        if self.kv_channels % 2:
            raise ValueError(f"kv_channels is {self.kv_channels}; RoPE needs an even number")

    def _fill_from(self, preset: str) -> None:
        if preset not in PRESETS:
            raise ValueError(f"preset {preset!r} is unknown; presets are {', '.join(PRESETS)}")
        shape = PRESETS[preset]()
        for name in _SIZES:
            if getattr(self, name) == FROM_PRESET:
                object.__setattr__(self, name, getattr(shape, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Tokens to train on: one corpus, several weighted by size, or a blend with weights.

    Split 100/0/0; attention is not reset at document borders and end tokens stay in the loss.
    The source prints none of the three.
    """

    corpus: Path | tuple[Path, ...] = ()
    """Prefix of a .bin/.idx pair, or a list of prefixes: a blend weighted by tokens."""
    blend: Path | tuple[BlendSource, ...] = ()
    """A recipe (``corpus.blend``), or its sources spelled out here."""
    seq_length: int = 4096
    """Inputs of a sample. Not printed by the source."""

    def __post_init__(self) -> None:
        if bool(self.corpus) == bool(self.blend):
            raise ValueError("give either corpus or blend, not both and not neither")
        if isinstance(self.blend, Path):
            object.__setattr__(self, "blend", load_blend(self.blend).source)
        Blend(source=tuple(BlendSource(corpus=prefix, weight=1.0) for prefix in self.prefixes))
        _at_least_one(self, "seq_length")

    @property
    def prefixes(self) -> tuple[Path, ...]:
        """Every .bin/.idx prefix, in order."""
        if self.blend:
            assert not isinstance(self.blend, Path)  # read when this was made
            return tuple(source.corpus for source in self.blend)
        return self.corpus if isinstance(self.corpus, tuple) else (self.corpus,)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Optimisation: AdamW, linear warm-up from above zero, cosine to ``min_lr_ratio``."""

    steps: int | None = None
    tokens: int | None = None
    """In place of ``steps``; rounded up to whole global batches."""
    global_batch_size: int = 256
    micro_batch_size: int | None = None
    """Samples a process holds at once; None: all of its share of the global batch."""
    lr: float = 2.5e-4
    min_lr_ratio: float = 0.1
    warmup_ratio: float = 0.03
    weight_decay: float = 0.1  # not printed by the source
    beta1: float = 0.9  # not printed by the source
    beta2: float = 0.95  # not printed by the source
    clip_grad: float = 1.0  # not printed by the source; 0 turns clipping off
    bf16: bool = False
    """Compute in bfloat16 with float32 gradient accumulation and float32 main weights."""

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.tokens is None):
            raise ValueError("give either steps or tokens")
        _at_least_one(self, "steps", "tokens", "global_batch_size", "micro_batch_size")
        if not self.lr > 0:
            raise ValueError(f"lr is {self.lr}; a positive number is needed")
        for name in ("min_lr_ratio", "warmup_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; a number in [0, 1] is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How the model is cut over processes; what is left over is data parallel."""

    tensor: int = 1
    pipeline: int = 1
    distributed_optimizer: bool = False
    """Each data-parallel process keeps only its share of the optimizer state."""

    def __post_init__(self) -> None:
        _at_least_one(self, "tensor", "pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Which steps are kept, and for how many of them the optimizer state as well."""

    early: bool = True
    """Keep steps 0, 1, 2, 4, ... up to ``early_until``."""
    early_until: int = 512
    every: int = 1000
    """After the early steps, keep every multiple of this; the last step always."""
    keep_optimizer: int = 1
    """Checkpoints, counted from the newest, that hold what a resume needs; 0: none does."""
    asynchronous: bool | None = None
    """Write while training goes on; None: only with CUDA, since on a CPU the writer would take
    the cores that train."""

    def __post_init__(self) -> None:
        _at_least_one(self, "early_until", "every")
        if self.keep_optimizer < 0:
            raise ValueError(f"keep_optimizer is {self.keep_optimizer}; 0 or more is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """What is written down while a run goes on."""

    every: int = 1
    """A line in train.jsonl each so many steps."""
    tensorboard: bool = False
    """TensorBoard event files in ``out/tensorboard``."""
    probe_every: int | None = None
    """Steps between two probes of the live embeddings against ``signatures``."""
    signatures: Path | None = None

    def __post_init__(self) -> None:
        _at_least_one(self, "every", "probe_every")
        if (self.probe_every is None) != (self.signatures is None):
            raise ValueError("probe_every and signatures belong together; give both or neither")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One training run, whole."""

    out: Path
    """Folder of the run: train.jsonl, checkpoints/, and the sample order of the data."""
    seed: int = 1234
    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        model, parallel = self.model, self.parallel
        for what, size, ways in (
            ("num_attention_heads", model.num_attention_heads, parallel.tensor),
            ("ffn_hidden_size", model.ffn_hidden_size, parallel.tensor),
            ("vocab_size", model.vocab_size, parallel.tensor),
            ("num_layers", model.num_layers, parallel.pipeline),
        ):
            if size % ways:
                raise ValueError(f"{what} = {size} cannot be cut {ways} ways; choose a multiple")

    @property
    def tokens_per_step(self) -> int:
        """Inputs of one global batch."""
        return self.train.global_batch_size * self.data.seq_length

    @property
    def steps(self) -> int:
        """Optimizer updates of the whole run."""
        if self.train.steps is not None:
            return self.train.steps
        assert self.train.tokens is not None
        return -(-self.train.tokens // self.tokens_per_step)

    def checkpoint_steps(self) -> list[int]:
        """Return the steps of this run that become checkpoints."""
        kept = self.checkpoint
        return checkpoint_steps(self.steps, kept.early, kept.every, kept.early_until)


def checkpoint_steps(
    total_steps: int, early: bool, every: int, early_until: int = 512
) -> list[int]:
    """Return the steps to keep: 0, 1, 2, 4, .. ``early_until``, then each ``every``, and the last.

    Without ``early`` the multiples of ``every`` start at ``every`` itself.
    """
    steps = {total_steps}
    if early:
        powers = (2**exponent for exponent in range(early_until.bit_length()))
        steps |= {0, *(power for power in powers if power <= min(early_until, total_steps))}
    after = early_until if early else 0
    steps |= set(range((after // every + 1) * every, total_steps, every))
    return sorted(steps)


def decoder_680m() -> ModelConfig:
    """Shape of the source's "about 680M": hidden 1536 = 16 x 96, 679,552,512 non-embedding."""
    return ModelConfig(
        num_layers=24,
        hidden_size=1536,
        num_attention_heads=16,
        kv_channels=96,
        ffn_hidden_size=4096,
        vocab_size=60_416,
    )


def decoder_as_printed() -> ModelConfig:
    """Shape with the hidden size the source prints, 1024: 453,035,008 non-embedding parameters.

    The printed width and the printed size cannot both hold, so both models are here.
    """
    return dataclasses.replace(decoder_680m(), hidden_size=1024)


def decoder_small() -> ModelConfig:
    """Shape for a laptop: hours on a few cores."""
    return ModelConfig(
        num_layers=6,
        hidden_size=384,
        num_attention_heads=6,
        kv_channels=64,
        ffn_hidden_size=1024,
        vocab_size=16_384,
    )


def decoder_demo() -> ModelConfig:
    """Shape of the demo: minutes on two cores."""
    return ModelConfig(
        num_layers=2,
        hidden_size=128,
        num_attention_heads=4,
        kv_channels=32,
        ffn_hidden_size=352,
        vocab_size=4096,
    )


PRESETS: dict[str, Callable[[], ModelConfig]] = {
    preset.__name__: preset
    for preset in (decoder_680m, decoder_as_printed, decoder_small, decoder_demo)
}


def demo_run(*, corpus: Path, out: Path, gamma: float, steps: int, seed: int) -> RunConfig:
    """One of the demo's runs: weights of every checkpoint, no optimizer state.

    The rate, constant after a slow warm-up, and no weight decay were found by search among what
    fits into minutes: a faster warm-up leaves noise in the embeddings that lowers every rho.
    """
    return RunConfig(
        out=out,
        seed=seed,
        model=dataclasses.replace(decoder_demo(), gamma=gamma),
        data=DataConfig(corpus=corpus, seq_length=64),
        train=TrainConfig(
            steps=steps,
            global_batch_size=16,
            lr=6e-3,
            min_lr_ratio=1.0,
            warmup_ratio=min(1.0, 150 / steps),
            weight_decay=0.0,
            beta2=0.999,
        ),
        checkpoint=CheckpointConfig(early_until=64, every=50, keep_optimizer=0),
    )
