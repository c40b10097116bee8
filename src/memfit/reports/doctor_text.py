"""Doctor -> text: what is here and what memfit would use."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memfit.core.records import Budget, Doctor, Package
from memfit.core.units import format_size

_SOURCES = {
    "given": "given",
    "limit": "the limit in force",
    "gpu": "the GPU's pool",
    "cgroup": "the cgroup's available memory less a reserve of {reserve}",
    "machine": "the machine's available memory less a reserve of {reserve}",
}


def show_doctor(doctor: Doctor) -> RenderableType:
    """The whole report, for a console of 80 columns or more."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("memfit", doctor.memfit_version)
    for package in doctor.packages:
        table.add_row(package.name, _package(package))
    table.add_row("backend", doctor.backend)
    table.add_row("devices", ", ".join(doctor.devices) or "unknown without TensorFlow")
    table.add_row("allocator", doctor.allocator)
    table.add_row("memory", _memory(doctor))
    table.add_row("cgroup", _cgroup(doctor))
    table.add_row("process", f"{format_size(doctor.process_bytes)} resident")
    table.add_row("budget", _budget(doctor.budget))
    warnings = [Text(f"Warning: {warning}", style="yellow") for warning in doctor.warnings]
    return Group(table, *warnings)


def _package(package: Package) -> Text:
    if package.warning is None:
        return Text(f"{package.version}")
    return Text(f"{package.warning} (supported: {package.supported})", style="yellow")


def _memory(doctor: Doctor) -> str:
    return f"{format_size(doctor.host.available_bytes)} available of {format_size(doctor.host.total_bytes)}"


def _cgroup(doctor: Doctor) -> str:
    limit, available = doctor.host.cgroup_limit_bytes, doctor.host.cgroup_available_bytes
    if limit is None or available is None:
        return "no memory limit"
    return f"{format_size(available)} available of {format_size(limit)}"


def _budget(budget: Budget) -> str:
    source = _SOURCES[budget.source].format(reserve=format_size(budget.reserve_bytes))
    return f"{format_size(budget.budget_bytes)} ({source})"
