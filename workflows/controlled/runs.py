"""What a run of a toy model depends on, and what it leaves behind.

Shapes: T checkpoints, E evaluations.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from workflows.controlled.models import ModelConfig, ToyCheckpoint
from workflows.controlled.tasks import TaskConfig, built

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything one run depends on; the defaults are the shared settings of all experiments.

    They are chosen, the paper gives none of them: `settings` says why, and where one differs.

    Raises
    ------
    ValueError
        Numbers out of range, or weighted samples in mini batches.
    """

    task: TaskConfig
    model: ModelConfig = field(default_factory=ModelConfig)
    seed: int = 0
    epochs: int
    batch_size: int | None = 100
    """None: full batch."""
    lr: float = 2e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.1
    dtype: Literal["float32", "float64"] = "float32"
    checkpoints: tuple[int, ...] = ()
    """Epochs after which parameters are kept; 0 is the start. The last is always kept."""
    evaluate_every: int = 1
    """Epochs between evaluations; the first and the last epoch are always evaluated."""
    stop_accuracy: float | None = None
    """End the run at this accuracy."""

    def __post_init__(self) -> None:
        for name in ("epochs", "evaluate_every", "lr"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} {getattr(self, name)}: more than 0 is needed")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size {self.batch_size}: at least 1 is needed, or None for all")
        if outside := [e for e in self.checkpoints if not 0 <= e <= self.epochs]:
            raise ValueError(f"checkpoints {outside}: epochs 0 to {self.epochs} are needed")

    def record(self) -> dict[str, Any]:
        """Every hyper-parameter, ready for JSON."""
        return {"task": type(self.task).__name__, "run": json.loads(json.dumps(asdict(self)))}

    def key(self) -> str:
        """Hash of the record: names the run in the cache."""
        return hashlib.sha256(json.dumps(self.record(), sort_keys=True).encode()).hexdigest()[:16]

    def stacks_with(self) -> str:
        """Equal for runs that can be trained as one stack."""
        shape = built(self.task).enumerated.samples_NL.shape
        model = replace(self.model, gamma=1.0)
        alike = replace(self, model=model, seed=0, lr=1.0, weight_decay=0.0)
        rest = {name: value for name, value in alike.record()["run"].items() if name != "task"}
        return json.dumps([shape, self.task.vocab_size, rest], sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedRun:
    """What a run leaves behind."""

    config: RunConfig
    evaluated_E: IntArray
    """Epochs."""
    loss_E: FloatArray
    """Mean cross-entropy over the data, nats."""
    hits_E: IntArray
    """Weight of the samples whose label has the largest logit."""
    total: int
    """Weight of all samples."""
    kept_T: IntArray
    """Epochs whose parameters are kept."""
    parameters: dict[str, Array]
    """Name to (T, ..)."""

    @property
    def accuracy(self) -> FloatArray:
        """Share of hits at each evaluation, (E)."""
        return np.asarray(self.hits_E / self.total)

    def accuracy_at(self, epoch: int) -> float:
        """Accuracy after ``epoch`` epochs.

        Raises
        ------
        ValueError
            An epoch that was not evaluated.
        """
        places = np.flatnonzero(self.evaluated_E == epoch)
        if not places.size:
            raise ValueError(
                f"epoch {epoch}: not evaluated, the run has {len(self.evaluated_E)} evaluations up "
                f"to epoch {self.evaluated_E[-1]}; choose `evaluate_every` to meet it"
            )
        return float(self.accuracy[places[0]])

    def first_epoch_at(self, accuracy: float) -> float:
        """First evaluated epoch of at least this accuracy; infinity when there is none."""
        reached = np.flatnonzero(self.hits_E >= accuracy * self.total)
        return float(self.evaluated_E[reached[0]]) if reached.size else float("inf")

    def checkpoint(self, epoch: int) -> ToyCheckpoint:
        """Parameters after ``epoch`` epochs.

        Raises
        ------
        ValueError
            An epoch that was not kept.
        """
        places = np.flatnonzero(self.kept_T == epoch)
        if not places.size:
            raise ValueError(
                f"epoch {epoch}: kept are {self.kept_T.tolist()}; name it in `checkpoints`"
            )
        return ToyCheckpoint(
            name=f"{self.config.key()}, epoch {epoch}",
            step=epoch,
            parameters={name: rows[places[0]] for name, rows in self.parameters.items()},
            config=self.config.record(),
        )

    def embedding(self, epoch: int, tokens: IntArray) -> Array:
        """Rows w_a of the tokens after ``epoch`` epochs, (n, H)."""
        return self.checkpoint(epoch).input_embedding(tokens)


@dataclass(slots=True)
class RunLog:
    """What a run under way has left behind so far."""

    epochs: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    kept_epochs: list[int] = field(default_factory=list)
    values: list[dict[str, Array]] = field(default_factory=list)

    def evaluated(self, epoch: int, loss: float, hits: int) -> None:
        """Add an evaluation."""
        self.epochs.append(epoch)
        self.losses.append(loss)
        self.hits.append(hits)

    def kept(self, epoch: int, values: dict[str, Array]) -> None:
        """Add parameters, once an epoch."""
        if epoch not in self.kept_epochs:
            self.kept_epochs.append(epoch)
            self.values.append(values)

    def finished(self, config: RunConfig, total: int) -> TrainedRun:
        """Return the run."""
        return TrainedRun(
            config=config,
            evaluated_E=np.array(self.epochs, np.int64),
            loss_E=np.array(self.losses),
            hits_E=np.array(self.hits, np.int64),
            total=total,
            kept_T=np.array(self.kept_epochs, np.int64),
            parameters={
                name: np.stack([value[name] for value in self.values]) for name in self.values[0]
            },
        )

    def state(self) -> dict[str, Any]:
        """Everything logged, for ``torch.save``."""
        values = [{n: torch.from_numpy(a) for n, a in one.items()} for one in self.values]
        return {"epochs": self.epochs, "losses": self.losses, "hits": self.hits,
                "kept_epochs": self.kept_epochs, "values": values}  # fmt: skip

    @classmethod
    def restored(cls, state: dict[str, Any]) -> "RunLog":
        """Undo `state`."""
        values = [{n: t.numpy() for n, t in one.items()} for one in state["values"]]
        return cls(**state | {"values": values})
