"""The library: what a notebook calls.

The command line and studies end in the same Trainers.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ralseg.acquisition.policy import Policy
from ralseg.agents.base import Agent
from ralseg.data.any_image import AnyImage
from ralseg.data.datamodule import SegmentationData
from ralseg.engine.acquire_session import AcquisitionConfig
from ralseg.engine.acquire_trainer import AcquireTrainer
from ralseg.engine.final_training import FinalTraining
from ralseg.engine.fit_trainer import POLICY, FitTrainer
from ralseg.engine.game import Game
from ralseg.engine.trainer import RunTrainer
from ralseg.errors import ConfigError
from ralseg.labels.oracle import Oracle
from ralseg.models.loading import load
from ralseg.models.segmenter import Segmenter
from ralseg.runtime import run_folder
from ralseg.studies.plan import Study


def _quiet(options: dict[str, Any]) -> dict[str, Any]:
    """Trainer options as a notebook wants them: no MLflow and no model summary, unless asked for."""
    return {"logger": False, "enable_model_summary": False} | options


def pretrain(
    segmenter: Segmenter, data: SegmentationData, folder: str = "runs/pretrain", ckpt: str | None = None, **trainer: Any
) -> Path:
    """Train a segmenter on the images of ``data.fit_on``: theta_0, or full supervision.

    Args:
        segmenter: The network; it ends with the weights of the last epoch.
        data: The data.
        folder: Folder of the run.
        ckpt: ``last`` goes on with the run in the folder.
        trainer: Options of Lightning's Trainer, ``max_epochs`` for example.

    Returns:
        The checkpoint of the best epoch by mean IoU on the reward set.

    Examples:
        >>> import tempfile, ralseg
        >>> from ralseg.data import SyntheticStreets
        >>> streets = SyntheticStreets(num_train=6, num_val=2, num_test=2, height=64, width=64)
        >>> data = ralseg.SegmentationData(streets, ralseg.SplitSizes(state=1, train=2), layout=ralseg.GridLayout(2, 2))
        >>> net = ralseg.FPNSegmenter(streets.class_names, encoder="tu-test_resnet", encoder_weights="none")
        >>> quiet = {"accelerator": "cpu", "enable_progress_bar": False}
        >>> pretrain(net, data, tempfile.mkdtemp(), max_epochs=1, **quiet).name  # doctest: +ELLIPSIS
        best reward_set/miou ...
        'best.ckpt'
    """
    RunTrainer(default_root_dir=folder, **_quiet(trainer)).pretrain(segmenter, data, ckpt)
    return run_folder.find_checkpoint(Path(folder), "best")


def test(
    segmenter: Segmenter, data: SegmentationData, ckpt: str, folder: str = "runs/test", **trainer: Any
) -> dict[str, float]:
    """Scores of a checkpoint on the test set: ``test_set/miou``, and the IoU of each class.

    Args:
        segmenter: A network of the checkpoint's kind.
        data: The data.
        ckpt: The checkpoint.
        folder: Where ``test.json`` goes.
        trainer: Options of Lightning's Trainer.

    Examples:
        >>> import tempfile, ralseg
        >>> from ralseg.data import SyntheticStreets
        >>> streets = SyntheticStreets(num_train=6, num_val=2, num_test=2, height=64, width=64)
        >>> data = ralseg.SegmentationData(streets, ralseg.SplitSizes(state=1, train=2), layout=ralseg.GridLayout(2, 2))
        >>> net = ralseg.FPNSegmenter(streets.class_names, encoder="tu-test_resnet", encoder_weights="none")
        >>> quiet = {"accelerator": "cpu", "enable_progress_bar": False}
        >>> theta_0 = ralseg.pretrain(net, data, tempfile.mkdtemp(), max_epochs=1, **quiet)  # doctest: +ELLIPSIS
        best reward_set/miou ...
        >>> scores = test(net, data, str(theta_0), tempfile.mkdtemp(), **quiet)  # doctest: +ELLIPSIS
        test set...
        >>> 0 <= scores["test_set/miou"] <= 1
        True
    """
    results = RunTrainer(default_root_dir=folder, **_quiet(trainer)).test(segmenter, datamodule=data, ckpt=ckpt)
    return {name: float(value) for name, value in results[0].items()}


def fit(
    agent: Agent,
    segmenter: Segmenter,
    data: SegmentationData,
    game: Game,
    folder: str = "runs/fit",
    ckpt: str | None = None,
    **trainer: Any,
) -> Path:
    """Play episodes on the train set, and have an agent learn which regions to label.

    Args:
        agent: Who learns.
        segmenter: The network that plays.
        data: The data.
        game: The rules.
        folder: Folder of the run.
        ckpt: ``last`` goes on with the run in the folder.
        trainer: Options of Lightning's Trainer.

    Returns:
        The file of the learned policy alone.

    Examples:
        >>> import tempfile, ralseg
        >>> from ralseg.data import SyntheticStreets
        >>> streets = SyntheticStreets(num_train=6, num_val=2, num_test=2, height=64, width=64)
        >>> data = ralseg.SegmentationData(streets, ralseg.SplitSizes(state=1, train=2), layout=ralseg.GridLayout(2, 2))
        >>> net = ralseg.FPNSegmenter(streets.class_names, encoder="tu-test_resnet", encoder_weights="none")
        >>> quiet = {"accelerator": "cpu", "enable_progress_bar": False}
        >>> game = ralseg.Game(budget=2, regions_per_step=1, pool_size=2, episodes=1, validation_plays=0)
        >>> fit(ralseg.DQN(), net, data, game, tempfile.mkdtemp(), **quiet).name  # doctest: +ELLIPSIS
        policy: ...
        'policy.ckpt'
    """
    FitTrainer(game, default_root_dir=folder, **_quiet(trainer)).fit(segmenter, datamodule=data, agent=agent, ckpt=ckpt)
    policy = Path(folder) / POLICY
    if not policy.is_file():
        raise ConfigError(f"{policy}: not written, for the game was stopped before its end (max_epochs, fast_dev_run)")
    return policy


def acquire(
    policy: str | Path | Policy,
    segmenter: Segmenter,
    data: SegmentationData,
    acquisition: AcquisitionConfig,
    final: FinalTraining | None = None,
    oracle: str | Oracle = "masks",
    folder: str = "runs/acquire",
    ckpt: str | None = None,
    **trainer: Any,
) -> dict[str, Any] | None:
    """Spend a labelling budget on the acquisition set, then train and test a segmenter at each budget.

    Args:
        policy: A policy, a heuristic's name, or the file of a learned policy.
        segmenter: The network that learns from the labels as they come.
        data: The data.
        acquisition: How the budget is spent.
        final: How the final segmenters are trained.
        oracle: Who labels: an oracle, or its name.
        folder: Folder of the run.
        ckpt: ``last`` goes on with the run in the folder.
        trainer: Options of Lightning's Trainer.

    Returns:
        What ``result.json`` holds; None where the run waits for labels.

    Examples:
        >>> import tempfile, ralseg
        >>> from ralseg.data import SyntheticStreets
        >>> streets = SyntheticStreets(num_train=6, num_val=2, num_test=2, height=64, width=64)
        >>> data = ralseg.SegmentationData(streets, ralseg.SplitSizes(state=1, train=2), layout=ralseg.GridLayout(2, 2))
        >>> net = ralseg.FPNSegmenter(streets.class_names, encoder="tu-test_resnet", encoder_weights="none")
        >>> quiet = {"accelerator": "cpu", "enable_progress_bar": False}
        >>> rules = ralseg.AcquisitionConfig(budgets=[2], regions_per_step=2, pool_size=2)
        >>> final = ralseg.FinalTraining(max_steps=1, validate_every=1)
        >>> here = tempfile.mkdtemp()
        >>> result = acquire("entropy", net, data, rules, final, folder=here, **quiet)  # doctest: +ELLIPSIS
        best reward_set/miou ...
        >>> list(result["budgets"])
        ['2']
    """
    runner = AcquireTrainer(acquisition, final or FinalTraining(), default_root_dir=folder, **_quiet(trainer))
    chosen = str(policy) if isinstance(policy, Path) else policy
    return runner.acquire(segmenter, data, chosen, oracle=oracle, ckpt=ckpt)


def compare(study: Study, report_only: bool = False) -> Path:
    """Run what is missing of a study, and write its report.

    Args:
        study: What is compared. Its methods are names, files or class paths, for cells run in other processes.
        report_only: Run nothing; report what there is.

    Returns:
        The HTML page.

    Examples:
        >>> import ralseg
        >>> study = ralseg.Study(name="mine", methods={"uniform": "uniform", "bald": "bald"}, seeds=[0, 1, 2])
        >>> page = compare(study)  # doctest: +SKIP
    """
    from ralseg.commands import load_study_data, run_acquire
    from ralseg.studies.report import PAGE
    from ralseg.studies.run import compare_study

    compare_study(study, run_acquire, load_study_data, report_only=report_only)
    return Path(study.folder) / "report" / PAGE


def load_segmenter(path: str | Path, segmenter: Segmenter | None = None) -> Segmenter:
    """A trained segmenter, ready to predict, made from the file alone.

    Args:
        path: A checkpoint; or the folder of a run: of `pretrain`, whose best checkpoint is taken, or of `acquire`, of
            which the tested segmenter of the largest budget is taken.
        segmenter: Takes the weights, for checkpoints that do not say how their segmenter is made: older ones, and
            those of classes of your own whose arguments are no plain values.

    Examples:
        >>> import tempfile, ralseg
        >>> from ralseg.data import SyntheticStreets
        >>> streets = SyntheticStreets(num_train=6, num_val=2, num_test=2, height=64, width=64)
        >>> data = ralseg.SegmentationData(streets, ralseg.SplitSizes(state=1, train=2), layout=ralseg.GridLayout(2, 2))
        >>> net = ralseg.FPNSegmenter(streets.class_names, encoder="tu-test_resnet", encoder_weights="none")
        >>> quiet = {"accelerator": "cpu", "enable_progress_bar": False}
        >>> theta_0 = ralseg.pretrain(net, data, tempfile.mkdtemp(), max_epochs=1, **quiet)  # doctest: +ELLIPSIS
        best reward_set/miou ...
        >>> load_segmenter(theta_0).predict(streets.read_image(0)).shape
        (64, 64)
    """
    return load(Path(path), segmenter)


def predict(segmenter: Segmenter, image: AnyImage) -> NDArray[np.uint8]:
    """The class of each pixel of one image, in its own size: [height, width]. The same as ``segmenter.predict(image)``.

    Args:
        segmenter: The network.
        image: [height, width, 3] or grey [height, width], of uint8 or of floats from 0 to 1, an image of Pillow's, or
            a file.

    Examples:
        >>> from ralseg.models import FPNSegmenter
        >>> net = FPNSegmenter(("road", "sky"), encoder="tu-test_resnet", encoder_weights="none")
        >>> predict(net, np.zeros((50, 70, 3), np.uint8)).shape
        (50, 70)
    """
    return segmenter.predict(image)
