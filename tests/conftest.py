import sys
import tempfile
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parent))

# Most tests compile the same warm-up of the same small models. XLA's cache is keyed by the program, so that a changed
# one is compiled anew; it is shared by the workers of a run.
CACHE = Path(tempfile.gettempdir()) / "langevin-test-cache"
CACHE.mkdir(exist_ok=True)
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
