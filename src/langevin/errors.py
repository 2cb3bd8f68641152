"""The exceptions and warnings of langevin.

LangevinError
├── ModelError      a program or density that cannot be used as asked; names the site
│   └── NotConjugateError      a site whose conditional is no known family; names what stands in the way
├── DataError       rows that cannot be used; names the column and the row
├── SettingError    a bad argument; names it, the value received, and what to try
│   └── UnknownSettingError    an argument that there is not; says which was probably meant
├── SamplingError   a run that could not go on; names the chain, the step, and what to try
└── StoreError      a folder that cannot be written or read; names the file, and how to go on

LangevinWarning     the run goes on, and its result says why not to trust it blindly
"""


class LangevinError(Exception):
    """Base of every exception that langevin raises on purpose."""


class ModelError(LangevinError, ValueError):
    """The model cannot be used in the way that was asked for."""


class NotConjugateError(ModelError):
    """A site has no conditional in a family that is known here.

    Attributes:
        site: Its name.
    """

    def __init__(self, message: str, site: str = "") -> None:
        super().__init__(message)
        self.site = site


class DataError(LangevinError, ValueError):
    """The data cannot be used."""


class SettingError(LangevinError, ValueError):
    """An argument or a setting has a value that makes no sense."""


class UnknownSettingError(SettingError, TypeError):
    """There is no such argument or setting."""


class SamplingError(LangevinError, RuntimeError):
    """A run stopped before it had anything to return."""


class StoreError(LangevinError, OSError):
    """A folder cannot be written or read."""


class LangevinWarning(UserWarning):
    """Something the user should know about a run that goes on."""
