"""The configurations that come with ralseg, found by their bare names from any folder."""

from pathlib import Path

from ralseg.errors import ConfigError


def config_folder() -> Path:
    """``ralseg/configs`` of an installed wheel, or ``configs`` of a checkout."""
    packaged = Path(__file__).parent / "configs"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "configs"


def find_config(name: str) -> str:
    """A path as given if it is a file; else the shipped configuration of that bare name."""
    if Path(name).is_file() or Path(name).name != name:
        return name
    shipped = {path.name: path for path in sorted(config_folder().glob("*.yaml"))}
    path = shipped.get(name) or shipped.get(f"{name}.yaml")
    if path is None:
        raise ConfigError(f"--config {name}: neither a file here nor a shipped one; shipped are {', '.join(shipped)}")
    return str(path)


def resolve_configs(arguments: list[str]) -> list[str]:
    """Replace the value of every ``--config`` / ``-c`` by what :func:`find_config` finds."""
    resolved = list(arguments)
    for position, argument in enumerate(resolved):
        if argument in ("--config", "-c") and position + 1 < len(resolved):
            resolved[position + 1] = find_config(resolved[position + 1])
        elif argument.startswith("--config="):
            resolved[position] = f"--config={find_config(argument.removeprefix('--config='))}"
    return resolved
