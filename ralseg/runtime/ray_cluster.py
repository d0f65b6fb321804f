"""A Ray cluster: one that exists, or one of this machine, and what its processes need."""

import importlib
from dataclasses import dataclass, field
from typing import Any

from ralseg.errors import ConfigError

STUDY_KEYS = ("engine", "engine_options")


@dataclass
class RayCluster:
    """A Ray cluster and what each process of this run needs there.

    Args:
        address: Of the cluster; ``auto`` finds one that runs here, None starts one on this machine.
        num_cpus: Processors of a process.
        num_gpus: Graphics processors of a process; a fraction shares one.
        resources: Other resources that a process needs, as the cluster names them.
        init: More options of ``ray.init``.
        keys: What the configuration calls the choice of Ray and these options, for messages.
    """

    address: str | None = "auto"
    num_cpus: float = 1
    num_gpus: float = 0
    resources: dict[str, float] = field(default_factory=dict)
    init: dict[str, Any] = field(default_factory=dict)
    keys: tuple[str, str] = STUDY_KEYS
    _is_ours: bool = field(default=False, init=False)

    @classmethod
    def of(cls, options: dict[str, Any], keys: tuple[str, str] = STUDY_KEYS) -> "RayCluster":
        """The cluster that options of a configuration describe."""
        try:
            return cls(**options, keys=keys)
        except TypeError as error:
            raise ConfigError(f"{keys[1]}={options}: {error}") from None

    def connect(self) -> Any:
        """The package ``ray``, connected to the cluster."""
        ray = optional_package("ray", "ray", self.keys[0])
        if not ray.is_initialized():
            quiet = {"include_dashboard": False, "log_to_driver": False} if self.address is None else {}
            try:
                ray.init(address=self.address, **(quiet | self.init))
            except ConnectionError as error:
                raise ConfigError(
                    f"{self.keys[1]}.address={self.address}: no Ray cluster answers ({error}); start one with "
                    "`ray start --head`, or give `address: null` for one on this machine"
                ) from None
            self._is_ours = True
        return ray

    def needs(self) -> dict[str, Any]:
        """What a process needs, as Ray asks for it."""
        return {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, "resources": dict(self.resources)}

    def leave(self) -> None:
        """Disconnect, if it was this object that connected."""
        if self._is_ours:
            optional_package("ray", "ray", self.keys[0]).shutdown()
            self._is_ours = False


def optional_package(module: str, extra: str, key: str) -> Any:
    """A package that not everyone has, or the way to it.

    Args:
        module: Its name.
        extra: Of ralseg, which brings it.
        key: The option that asked for it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise ConfigError(f"{key}={module} needs `pip install 'ralseg[{extra}]'`") from None
