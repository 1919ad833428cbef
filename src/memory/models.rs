//! Models that are loaded, kept for the life of the process: opening one costs far more than a query.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::error::{Error, Result};
use crate::model::encoder::Encoder;
use crate::model::reranker::Reranker;

/// Where the models are, as the caller's settings say.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelSettings {
    pub encoder: String,
    /// Empty: none.
    pub reranker: String,
    pub onnxruntime: PathBuf,
    pub threads: usize,
}

type Cache<T> = Mutex<Option<HashMap<(String, usize), Arc<T>>>>;

static ENCODERS: Cache<Encoder> = Mutex::new(None);
static RERANKERS: Cache<Reranker> = Mutex::new(None);

impl ModelSettings {
    /// The encoder of the settings.
    pub fn encoder(&self) -> Result<Arc<Encoder>> {
        self.open_encoder(&self.encoder, "encoder (lethe_model_directory)")
    }

    /// The encoder of another directory, that a call named.
    pub fn encoder_at(&self, directory: &str) -> Result<Arc<Encoder>> {
        self.open_encoder(directory, "encoder (the argument encoder)")
    }

    fn open_encoder(&self, directory: &str, what: &'static str) -> Result<Arc<Encoder>> {
        let open = || Encoder::open(directory, what, &self.onnxruntime, self.threads);
        cached(&ENCODERS, directory, self.threads, open)
    }

    /// `None` when no reranker is installed.
    pub fn reranker(&self) -> Result<Option<Arc<Reranker>>> {
        if self.reranker.is_empty() {
            return Ok(None);
        }
        let open = || Reranker::open(&self.reranker, &self.onnxruntime, self.threads);
        cached(&RERANKERS, &self.reranker, self.threads, open).map(Some)
    }
}

fn cached<T>(cache: &Cache<T>, directory: &str, threads: usize, open: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
    let mut cache = cache.lock().map_err(|_| Error::Internal("the lock of the models is poisoned".into()))?;
    let models = cache.get_or_insert_default();
    let key = (directory.to_owned(), threads);
    if let Some(model) = models.get(&key) {
        return Ok(model.clone());
    }
    let model = Arc::new(open()?);
    models.insert(key, model.clone());
    Ok(model)
}
