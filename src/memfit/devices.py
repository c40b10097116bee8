"""memfit.devices: readings of device, process, machine and cgroup."""

from memfit.machine import *
from memfit.machine import __all__ as __all__
