//! A cross-encoder: reads a query and a memory together and says how well the one answers the other.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use ort::session::Session;
use sha2::{Digest, Sha256};
use tokenizers::{Encoding, Tokenizer, TruncationDirection};

use super::directory::ModelDirectory;
use super::encoder::{PaddedBatch, TypedPieces, open_tokenizer};
use super::runtime;
use crate::error::{Error, Result};

const WHAT: &str = "reranker (lethe_reranker_directory)";
const BATCH_ROWS: usize = 32;

/// Any ONNX sequence-classification model with one label, a logit, or two, of which the second means relevant.
pub struct Reranker {
    pub name: String,
    tokenizer: Tokenizer,
    session: Mutex<Session>,
    inputs: Vec<String>,
    max_length: usize,
    /// The logits of pairs that were read before.
    known: Mutex<HashMap<Pair, f64>>,
}

/// A query and a memory, by the hash of their texts.
type Pair = [u8; 16];

/// So many pairs are remembered; then all are forgotten, and it begins anew.
const REMEMBERED: usize = 100_000;

impl Reranker {
    pub fn open(setting: &str, library: &Path, threads: usize) -> Result<Self> {
        let directory = ModelDirectory::read(setting, WHAT)?;
        let session = runtime::open(library, &directory.graph, threads)?;
        Ok(Self {
            tokenizer: open_tokenizer(&directory, WHAT)?,
            inputs: session.inputs().iter().map(|input| input.name().to_owned()).collect(),
            session: Mutex::new(session),
            name: directory.name,
            max_length: directory.max_length,
            known: Mutex::default(),
        })
    }

    /// The logit of each memory for the query. A pair that was read before is not read again.
    pub fn score(&self, query: &str, memories: &[&str]) -> Result<Vec<f64>> {
        let pairs: Vec<Pair> = memories.iter().map(|memory| pair_of(query, memory)).collect();
        let mut logits: Vec<Option<f64>> = {
            let known = self.known()?;
            pairs.iter().map(|pair| known.get(pair).copied()).collect()
        };
        let unread: Vec<usize> = (0..memories.len()).filter(|&place| logits[place].is_none()).collect();
        let read = self.read(query, &unread.iter().map(|&place| memories[place]).collect::<Vec<_>>())?;
        let mut known = self.known()?;
        if known.len() + unread.len() > REMEMBERED {
            known.clear();
        }
        for (place, logit) in unread.into_iter().zip(read) {
            known.insert(pairs[place], logit);
            logits[place] = Some(logit);
        }
        Ok(logits.into_iter().flatten().collect())
    }

    fn known(&self) -> Result<MutexGuard<'_, HashMap<Pair, f64>>> {
        self.known.lock().map_err(|_| Error::Internal("the lock of the reranker's scores is poisoned".into()))
    }

    /// Reads each memory with the query.
    ///
    /// A memory that does not fit next to the query is read in passages and scores as its best one (MaxP: Dai and Callan,
    /// SIGIR 2019). Pairs are run in batches of like length.
    fn read(&self, query: &str, memories: &[&str]) -> Result<Vec<f64>> {
        let mut query = self.encode(query)?;
        // Half of the input at most goes to the query; what a pair takes besides the memory is then known.
        query.truncate(self.max_length / 2, 0, TruncationDirection::Right);
        let besides = self.pair(&query, self.encode("")?)?.pieces.len();
        let room = self.max_length.saturating_sub(besides).max(1);
        let mut pairs: Vec<(usize, TypedPieces)> = Vec::with_capacity(memories.len());
        for (memory, text) in memories.iter().enumerate() {
            for passage in passages(self.encode(text)?, room) {
                pairs.push((memory, self.pair(&query, passage)?));
            }
        }
        pairs.sort_by_key(|(memory, pair)| (pair.pieces.len(), *memory));
        let mut scores = vec![f64::NEG_INFINITY; memories.len()];
        let mut pairs = pairs.into_iter().peekable();
        while pairs.peek().is_some() {
            let (owners, batch): (Vec<usize>, Vec<TypedPieces>) = pairs.by_ref().take(BATCH_ROWS).unzip();
            for (memory, logit) in owners.into_iter().zip(self.forward(batch)?) {
                scores[memory] = scores[memory].max(logit);
            }
        }
        Ok(scores)
    }

    fn encode(&self, text: &str) -> Result<Encoding> {
        self.tokenizer.encode(text, false).map_err(|error| Error::Model(error.to_string()))
    }

    /// Query and passage with the special tokens around them.
    fn pair(&self, query: &Encoding, passage: Encoding) -> Result<TypedPieces> {
        let pair = self.tokenizer.post_process(query.clone(), Some(passage), true);
        let pair = pair.map_err(|error| Error::Model(error.to_string()))?;
        Ok(TypedPieces { pieces: pair.get_ids().to_vec(), types: pair.get_type_ids().to_vec() })
    }

    fn forward(&self, pairs: Vec<TypedPieces>) -> Result<Vec<f64>> {
        let batch = PaddedBatch::new(pairs);
        let (shape, values) = batch.forward(&self.session, &self.inputs)?;
        match shape.as_slice() {
            [rows] | [rows, 1] if *rows == batch.rows => Ok(values.iter().map(|&x| f64::from(x)).collect()),
            [rows, 2] if *rows == batch.rows => {
                Ok(values.chunks_exact(2).map(|pair| f64::from(pair[1] - pair[0])).collect())
            }
            other => Err(Error::Model(format!(
                "the reranker's output has shape {other:?}, expected [batch, 1] or [batch, 2]"
            ))),
        }
    }
}

fn pair_of(query: &str, memory: &str) -> Pair {
    let mut hash = Sha256::new();
    hash.update((query.len() as u64).to_le_bytes());
    hash.update(query);
    hash.update(memory);
    let mut pair = Pair::default();
    pair.copy_from_slice(&hash.finalize()[..16]);
    pair
}

/// Cuts a text into passages of at most `room` pieces; one, if it fits.
fn passages(mut text: Encoding, room: usize) -> Vec<Encoding> {
    text.truncate(room, 0, TruncationDirection::Right);
    let rest = text.take_overflowing();
    std::iter::once(text).chain(rest).collect()
}
