//! ONNX Runtime, loaded once a process from a shared library named by path.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ort::environment::Environment;
use ort::session::Session;
use ort::session::builder::GraphOptimizationLevel;

use super::directory::{broken, missing};
use crate::error::{Error, Result};

const WHAT: &str = "ONNX Runtime (lethe_onnxruntime)";

struct Loaded {
    library: PathBuf,
    environment: std::sync::Arc<Environment>,
}

static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);

/// Opens a graph with `threads` threads for each run.
///
/// The first call of the process loads `library`; a later one may not name another, since a library cannot be unloaded.
pub fn open(library: &Path, graph: &Path, threads: usize) -> Result<Session> {
    let environment = environment(library)?;
    let failed = |error: &dyn std::fmt::Display| broken("model graph", graph, &error.to_string());
    Session::builder(&environment)
        .map_err(|error| failed(&error))?
        .with_optimization_level(GraphOptimizationLevel::Level3)
        .map_err(|error| failed(&error))?
        .with_intra_threads(threads)
        .map_err(|error| failed(&error))?
        .with_intra_op_spinning(false)
        .map_err(|error| failed(&error))?
        .commit_from_file(graph)
        .map_err(|error| failed(&error))
}

/// The library that was loaded, if one was.
pub fn loaded() -> Option<PathBuf> {
    LOADED.lock().ok()?.as_ref().map(|loaded| loaded.library.clone())
}

fn environment(library: &Path) -> Result<std::sync::Arc<Environment>> {
    let mut slot = LOADED.lock().map_err(|_| Error::Internal("ONNX Runtime's lock is poisoned".into()))?;
    if let Some(loaded) = slot.as_ref() {
        if loaded.library != library {
            let allowed =
                format!("'{}', which this process has loaded already; start a new process", loaded.library.display());
            return Err(Error::argument("lethe_onnxruntime", format!("'{}'", library.display()), allowed));
        }
        return Ok(loaded.environment.clone());
    }
    if !library.is_file() {
        return Err(missing(WHAT, library));
    }
    let failed = |error: &dyn std::fmt::Display| broken(WHAT, library, &error.to_string());
    let environment =
        ort::init_from(library).map_err(|error| failed(&error))?.build().map_err(|error| failed(&error))?;
    let environment = std::sync::Arc::new(environment);
    *slot = Some(Loaded { library: library.to_owned(), environment: environment.clone() });
    Ok(environment)
}
