"""Everything memfit raises.

MemfitError
├── InvalidSize (ValueError)            not a size: "8gigs", 0, -1
│   └── LargerThanMachine               a size beyond what the machine has
├── InvalidRecord (ValueError)          a JSON record that cannot be read
│   └── RecordTooNew                    ... because a newer memfit wrote it
├── TensorFlowMissing (ImportError)     TensorFlow or Keras is not installed
├── UnsupportedVersion                  TensorFlow or Keras is older than memfit supports
├── UnsupportedBackend                  Keras does not run on TensorFlow
├── RuntimeStarted (RuntimeError)       too late to set a limit
├── TensorFlowImported (RuntimeError)   too late to choose oneDNN
├── NotMeasurable (RuntimeError)        the allocator in force keeps no statistics
├── InvalidMicroBatchSize (ValueError)  not a number of samples
├── BatchSizesDiffer (ValueError)       arrays of one batch with different numbers of samples
├── CannotGuard                         training that memfit cannot guard exactly
├── InvalidBatchSize (ValueError)       not a number of samples
├── InvalidLever (ValueError)           not a lever that a plan can pull
├── UnusedArgument (ValueError)         something asked for that nothing would come of
├── WrongPlan (ValueError)              a plan for another model, other batches, other versions
├── NotAModel (TypeError)               something else than a Keras model to let go of
├── CannotEstimate                      a step whose memory cannot be known beforehand
├── InvalidTarget (ValueError)          a TARGET that names nothing: no colon, no name
│   └── TargetNotFound                  ... that is there: no such file, module or name
├── WrongTarget (TypeError)             a TARGET that names something else than a model or data
├── TargetFailed                        the user's own code raised while it was loaded or traced
├── CannotLoadModel                     a .keras file that cannot be read, or not safely
├── CannotRematerialise                 a model that cannot be cut into segments
│   └── NothingToGain                   ... because it would need as much memory as before
├── InvalidPrecision (ValueError)       not a precision that memfit knows
├── LayerNotFound (ValueError)          a name that no layer of the model has
├── CannotLowerPrecision                a model that cannot compute in 16 bits
│   └── NotFinite                       ... because its numbers overflow in float32 too
├── DoesNotFit                          not even the smallest step fits
│   └── NothingFits                     ... of all that a plan may do
├── TornUpdate                          an update that could go neither forward nor back
├── ChildFailed                         a process that memfit started ended badly
├── ScriptNotFound                      a script to run that is not there
├── DamagedCheckpoint                   a checkpoint that is not what was written
├── CannotResume                        a run that cannot go on exactly where it was
├── RunNotFound                         a run that is asked for and was never there
├── RamTooSmall                         a stream that its RAM is too small for
├── NoData (FileNotFoundError)          nothing to stream where something was expected
├── InvalidStream (ValueError)          an argument that does not describe a data set
├── DamagedData                         an element that cannot be read
├── SourceNotFound (FileNotFoundError)  source code to look at that is not there
├── UnknownRule (ValueError)            not the id of a lint rule
├── PackageMissing (ImportError)        a package that a kind of data needs
├── CannotRead (OSError)                a log that cannot be read
├── CannotDiagnose (TypeError)          something that is no log, no error and no run
└── CannotWrite (OSError)               output that cannot be written

Each states the fact with numbers, then what was expected and received, then a `Try:` line that can be
pasted. The numbers are attributes too.
"""

from memfit.core.errors.base import MemfitError
from memfit.core.errors.environment import (
    CannotResume,
    ChildFailed,
    DamagedCheckpoint,
    DamagedData,
    InvalidStream,
    NoData,
    NotMeasurable,
    PackageMissing,
    RamTooSmall,
    RunNotFound,
    RuntimeStarted,
    ScriptNotFound,
    TensorFlowImported,
    TensorFlowMissing,
    UnsupportedBackend,
    UnsupportedVersion,
)
from memfit.core.errors.inputs import (
    BatchSizesDiffer,
    CannotDiagnose,
    CannotLoadModel,
    CannotRead,
    CannotWrite,
    InvalidBatchSize,
    InvalidLever,
    InvalidMicroBatchSize,
    InvalidPrecision,
    InvalidRecord,
    InvalidSize,
    InvalidTarget,
    LargerThanMachine,
    LayerNotFound,
    RecordTooNew,
    SourceNotFound,
    TargetFailed,
    TargetNotFound,
    UnknownRule,
    UnusedArgument,
    WrongTarget,
)
from memfit.core.errors.trainings import (
    CannotEstimate,
    CannotGuard,
    CannotLowerPrecision,
    CannotRematerialise,
    DoesNotFit,
    NotAModel,
    NotFinite,
    NothingFits,
    NothingToGain,
    TornUpdate,
    WrongPlan,
)

__all__ = [
    "BatchSizesDiffer",
    "CannotDiagnose",
    "CannotEstimate",
    "CannotGuard",
    "CannotLoadModel",
    "CannotLowerPrecision",
    "CannotRead",
    "CannotRematerialise",
    "CannotResume",
    "CannotWrite",
    "ChildFailed",
    "DamagedCheckpoint",
    "DamagedData",
    "DoesNotFit",
    "InvalidBatchSize",
    "InvalidLever",
    "InvalidMicroBatchSize",
    "InvalidPrecision",
    "InvalidRecord",
    "InvalidSize",
    "InvalidStream",
    "InvalidTarget",
    "LargerThanMachine",
    "LayerNotFound",
    "MemfitError",
    "NoData",
    "NotAModel",
    "NotFinite",
    "NotMeasurable",
    "NothingFits",
    "NothingToGain",
    "PackageMissing",
    "RamTooSmall",
    "RecordTooNew",
    "RunNotFound",
    "RuntimeStarted",
    "ScriptNotFound",
    "SourceNotFound",
    "TargetFailed",
    "TargetNotFound",
    "TensorFlowImported",
    "TensorFlowMissing",
    "TornUpdate",
    "UnknownRule",
    "UnsupportedBackend",
    "UnsupportedVersion",
    "UnusedArgument",
    "WrongPlan",
    "WrongTarget",
]

for _name in __all__:  # tracebacks call them by the name under which they are imported
    globals()[_name].__module__ = "memfit.errors"
