"""What a real tritonserver needs of this machine: found without importing pytriton, each lack by its name."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from trtkit.errors import EnvironmentLacks

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_LIBRARY, _UTILITIES = "libtriton_python.so", "triton_python_backend_utils.py"
_INSTALL = "pip install 'trtkit[cpu]'"


@dataclass(frozen=True)
class Installation:
    """Where the parts of tritonserver are."""

    server: Path
    backend: Path
    stub: Path
    libraries: Path
    libpython: Path

    def lay_out(self, backends: Path) -> None:
        """Build a backend directory whose Python stub is the one for this Python."""
        target = backends / "python"
        target.mkdir(parents=True)
        shutil.copy2(self.backend / _UTILITIES, target / _UTILITIES)
        # The back end forgets its scratch folder when it is killed. Its copy here makes it in the directory that
        # the server runs in, which its keeper removes.
        library = (self.backend / _LIBRARY).read_bytes()
        (target / _LIBRARY).write_bytes(library.replace(b"/tmp/python_env_", b".////python_env_"))
        stub = target / self.stub.name
        shutil.copy2(self.stub, stub)
        stub.chmod(0o755)

    def environment(self, *, with_device: bool) -> dict[str, str]:
        """Return the variables that tritonserver and its Python stubs need."""
        libraries = [str(self.libpython.parent), str(self.libraries)]
        hidden = {} if with_device else {"CUDA_VISIBLE_DEVICES": ""}
        return hidden | {
            # The stub's Python finds its site-packages through the first python3 on PATH.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "LD_LIBRARY_PATH": os.pathsep.join(
                [*libraries, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
            ),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUTF8": "1",  # paths may hold any character, whatever the locale
        }


def find_installation() -> Installation:
    """Return the tritonserver of nvidia-pytriton. Raises EnvironmentLacks naming the first thing that lacks."""
    _check_platform()
    package = _package_folder()
    _check_numpy()
    server = package / "tritonserver"
    stub = server / "python_backend_stubs" / PYTHON / "triton_python_backend_stub"
    if not stub.is_file():
        known = ", ".join(sorted(path.name for path in stub.parent.parent.glob("*.*")))
        raise EnvironmentLacks(
            f"there is no Triton stub for Python {PYTHON}", hint=f"use one of Python {known}"
        )
    return Installation(
        server=server / "bin" / "tritonserver",
        backend=server / "backends" / "python",
        stub=stub,
        libraries=package.parent / "nvidia_pytriton.libs",
        libpython=_find_libpython(),
    )


def _check_platform() -> None:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise EnvironmentLacks(
            f"tritonserver runs on Linux x86_64, this is {sys.platform} {platform.machine()}",
            hint="run trtkit serve in an x86_64 Linux container",
        )
    library, version = platform.libc_ver()
    if library != "glibc" or tuple(map(int, version.split(".")[:2])) < (2, 35):
        raise EnvironmentLacks(
            f"tritonserver needs glibc 2.35, this is {library or 'another libc'} {version}",
            hint="use Debian 12, Ubuntu 22.04 or newer",
        )


def _check_numpy() -> None:
    version = importlib.metadata.version("numpy")
    if int(version.split(".")[0]) >= 2:
        raise EnvironmentLacks(
            f"Triton's Python stub reads text tensors wrongly with numpy {version}",
            hint="pip install 'numpy<2'",
        )


def _package_folder() -> Path:
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise EnvironmentLacks("nvidia-pytriton, which carries tritonserver, is not installed", hint=_INSTALL)
    return Path(spec.submodule_search_locations[0])


def _find_libpython() -> Path:
    """Return the shared libpython that the stub links; a Python built without one cannot serve."""
    name = f"libpython{PYTHON}.so.1.0"
    folders = [sysconfig.get_config_var("LIBDIR"), Path(sys.base_prefix, "lib"), "/usr/lib/x86_64-linux-gnu"]
    for folder in filter(None, folders):
        if (found := Path(folder, name)).is_file():
            return found
    if ctypes.util.find_library(f"python{PYTHON}"):
        return Path("/usr/lib", name)  # the loader knows where it is
    raise EnvironmentLacks(
        f"there is no {name}, and this Python was built without one",
        hint=f"apt-get install libpython{PYTHON}, or use a Python built with --enable-shared",
    )
