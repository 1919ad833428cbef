//! What is asked of whom, but for the question itself.

use std::path::Path;

use super::engine::Engine;
use super::knobs::Knobs;
use super::models::ModelSettings;
use crate::store::turns::Filter;

/// Which stores are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreChoice {
    /// The caller's current database.
    Current,
    Named(Vec<String>),
    /// Every attached database that is a store.
    All,
}

/// How a question is to be answered.
#[derive(Clone, Debug)]
pub struct Request {
    pub k: usize,
    pub stores: StoreChoice,
    pub filter: Filter,
    /// `None`: with a reranker if one is installed.
    pub rerank: Option<bool>,
    /// Fail, rather than say so in a note, when `rerank` asks for a reranker that is not there.
    pub require_reranker: bool,
    pub learn: bool,
    pub progress: bool,
}

/// Who asks, under which settings.
pub struct Asker<'a> {
    pub engine: &'a Engine,
    pub search_path: &'a str,
    pub models: &'a ModelSettings,
    /// Where indexes are saved; `None`: nowhere.
    pub cache: Option<&'a Path>,
    pub knobs: &'a Knobs,
}
