import sys
import tempfile
from pathlib import Path

# Else pytest would import it when a short session ends, by a parser of Python 3.11 that two threads cannot use at a
# time, and a fit imports ArviZ in another.
import hypothesis  # noqa: F401
import jax

sys.path.insert(0, str(Path(__file__).parent))

# Most tests compile the same warm-up of the same small models. XLA's cache is keyed by the program, so that a changed
# one is compiled anew; it is shared by the workers of a run.
CACHE = Path(tempfile.gettempdir()) / "langevin-test-cache"
CACHE.mkdir(exist_ok=True)
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
