//! Threads for long work, which Ctrl-C stops.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Pools by process and number of threads. They stay: one whose process is another's copy has no threads to be ended.
static POOLS: Mutex<BTreeMap<(u32, usize), Arc<ThreadPool>>> = Mutex::new(BTreeMap::new());
/// How often it is looked whether somebody pressed Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);

/// Raises what a signal asks for. Ctrl-C raises `KeyboardInterrupt`.
fn signals(py: Python<'_>) -> PyResult<()> {
    py.check_signals()
}

/// This process's pool of so many threads; 0 for one a core, or `RAYON_NUM_THREADS`. A process that was forked makes its own, for
/// threads are not copied: work that is not in such a pool may wait for ever there.
pub fn pool(threads: usize) -> PyResult<Arc<ThreadPool>> {
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (std::process::id(), threads);
    if let Some(pool) = pools.get(&key) {
        return Ok(Arc::clone(pool));
    }
    let named = ThreadPoolBuilder::new().num_threads(threads).thread_name(|index| format!("kvtide-{index}"));
    let pool = Arc::new(named.build().map_err(|error| PyRuntimeError::new_err(format!("threads: {error}")))?);
    pools.insert(key, Arc::clone(&pool));
    Ok(pool)
}

/// What `work` returns, done in `pool` while other Python threads go on. Ctrl-C, or any signal whose handler raises, sets what it
/// is given, upon which it should return soon; its result is then lost to the exception.
pub fn interruptible<T: Send>(
    py: Python<'_>,
    pool: &ThreadPool,
    work: impl Send + FnOnce(&AtomicBool) -> T,
) -> PyResult<T> {
    let stop = AtomicBool::new(false);
    let (result, done) = (Mutex::new(None), Condvar::new());
    let mut raised = None;
    py.detach(|| {
        pool.in_place_scope(|scope| {
            scope.spawn(|_| {
                let caught = panic::catch_unwind(AssertUnwindSafe(|| work(&stop)));
                *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(caught);
                done.notify_one();
            });
            let mut found = result.lock().unwrap_or_else(PoisonError::into_inner);
            while found.is_none() {
                let (again, waited) = done.wait_timeout(found, LOOK).unwrap_or_else(PoisonError::into_inner);
                found = again;
                if waited.timed_out() && found.is_none() && raised.is_none() {
                    drop(found);
                    raised = Python::attach(signals).err();
                    stop.store(raised.is_some(), Ordering::Relaxed);
                    found = result.lock().unwrap_or_else(PoisonError::into_inner);
                }
            }
        });
    });
    match (raised, result.into_inner().unwrap_or_else(PoisonError::into_inner)) {
        (Some(raised), _) => Err(raised),
        (None, Some(Ok(result))) => Ok(result),
        (None, Some(Err(panic))) => panic::resume_unwind(panic),
        (None, None) => Err(PyRuntimeError::new_err("the work was not done")),
    }
}

/// Does `work` in the calling thread, and at the same time in up to `helpers` threads of `pool`, but together in no more than it
/// has, while other Python threads go on. Each shall take of what there is to do until nothing is left, or what it is given says
/// true: Ctrl-C was pressed, which is then the error. The calling thread waits for nobody to wake up: short work is done by then.
pub fn together(
    py: Python<'_>,
    pool: &ThreadPool,
    helpers: usize,
    work: impl Fn(&dyn Fn() -> bool) + Sync,
) -> PyResult<()> {
    let stop = AtomicBool::new(false);
    let helpers = helpers.min(pool.current_num_threads() - 1);
    let raised = py.detach(|| {
        let (raised, looked) = (Cell::new(None), Cell::new(now()));
        let look = || {
            if looked.get().elapsed() >= LOOK {
                if let Err(error) = Python::attach(signals) {
                    raised.set(Some(error));
                    stop.store(true, Ordering::Relaxed);
                }
                looked.set(now());
            }
            stop.load(Ordering::Relaxed)
        };
        if helpers == 0 {
            work(&look);
        } else {
            pool.in_place_scope(|scope| {
                for _ in 0..helpers {
                    scope.spawn(|_| work(&|| stop.load(Ordering::Relaxed)));
                }
                work(&look);
            });
        }
        raised.into_inner()
    });
    raised.map_or(Ok(()), Err)
}

#[expect(clippy::disallowed_methods, reason = "how long nobody has looked for Ctrl-C; no decision depends on it")]
fn now() -> Instant {
    Instant::now()
}
