from __future__ import annotations

import subprocess
import sys

import memfit
from memfit.core.version import __version__


def test_public_names_are_pinned() -> None:
    assert memfit.__all__ == [
        "Budget",
        "Diagnosis",
        "Estimate",
        "MemfitError",
        "Plan",
        "Run",
        "__version__",
        "data",
        "devices",
        "diagnose",
        "errors",
        "estimate",
        "fit",
        "limit",
        "plan",
        "protect",
        "release",
        "remat",
        "step",
        "watch",
    ]
    assert memfit.devices.__all__ == [
        "PeakMeasurement", "budget_of_host", "check_fits_machine", "check_installed", "count_kills",
        "describe_allocator",
        "device_memory", "find_budget", "find_packages", "first_device", "host_memory", "is_oom", "limit",
        "limit_in_force", "load_keras", "load_tensorflow", "measure_peak", "pool_bytes", "process_bytes",
        "read_oom", "reserve_bytes", "reset_peak", "run_in_child", "runtime_started",
    ]  # fmt: skip
    assert memfit.data.__all__ == [
        "check", "explain", "from_arrays", "from_generator", "from_hdf5", "from_images", "from_parquet",
        "from_tfrecords", "pack", "verify_pack",
    ]  # fmt: skip


def test_every_public_name_exists() -> None:
    assert all(hasattr(memfit, name) for name in memfit.__all__)
    assert dir(memfit) == sorted(memfit.__all__)
    assert memfit.__version__ == __version__
    assert not hasattr(memfit, "no_such_name")


def _loaded_after(code: str) -> set[str]:
    code += "; import sys; print(' '.join(sys.modules))"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_importing_memfit_is_light() -> None:
    heavy = {"tensorflow", "keras", "numpy", "rich", "psutil", "click"}
    assert not heavy & _loaded_after("import memfit")
    assert "tensorflow" not in _loaded_after("import memfit; memfit.data")


def test_diagnosing_a_log_does_not_need_tensorflow() -> None:
    loaded = _loaded_after("import memfit; memfit.diagnose('Killed\\n')")
    assert not {"tensorflow", "keras"} & loaded


def test_help_and_version_are_light() -> None:
    for option in ("--help", "--version"):
        code = f"from memfit.cli.main import run; assert run([{option!r}]) == 0"
        assert not {"tensorflow", "keras", "numpy", "rich", "psutil"} & _loaded_after(code)


def test_devices_and_reports_do_not_need_tensorflow() -> None:
    loaded = _loaded_after(
        "import memfit.api, memfit.devices, memfit.demo.main_job, memfit.reports.demo_text"
    )
    assert not {"tensorflow", "keras"} & loaded
