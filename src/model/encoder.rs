//! Texts to states: the vector of a whole text and the state of each of its wordpieces.

use std::path::Path;
use std::sync::{Arc, Mutex};

use ort::session::Session;
use ort::value::Tensor;
use tokenizers::Tokenizer;

use super::adapter;
use super::directory::{ModelDirectory, Pooling, broken};
use super::runtime;
use crate::error::{Error, Result};
use crate::rank::adapter::Adapter;
use crate::rank::kernel::normalise;

/// The longest query, in wordpieces: a question, not a document. Each piece is compared with each piece of hundreds of turns.
const LONGEST_QUERY: usize = 1024;

/// Tokens of one batch, padding included, and rows: what a layer makes of 8 turns of 128 pieces still fits the cache. Measured on two
/// cores at 131 pieces a turn: 38 turns a second by eights, 29 by thirty-twos.
const BATCH_TOKENS: usize = 1024;
const BATCH_ROWS: usize = 8;

/// A vocabulary entry of the encoder's tokenizer.
pub type Piece = u32;

/// A text to encode behind other text: only `own` gets states, `context` is what they are read in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Input {
    pub context: Vec<Piece>,
    pub own: Vec<Piece>,
}

/// What an [`Input`] became.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// Unit vector of the whole text, `dim` values; zeros when the text has no pieces.
    pub embedding: Vec<f32>,
    /// A unit state for every own piece, row by row.
    pub states: Vec<f32>,
}

/// Who encodes: the key by which states of different encoders are kept apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderIdentity {
    pub id: String,
    pub name: String,
    pub dim: usize,
    pub pooling: &'static str,
}

impl std::fmt::Display for EncoderIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "'{}' ({}, {} dimensions)", self.name, self.id, self.dim)
    }
}

/// An encoder that is loaded and ready. Runs are serialised; each uses all the threads it was opened with.
pub struct Encoder {
    identity: EncoderIdentity,
    pooling: Pooling,
    tokenizer: Tokenizer,
    /// The query adapter that came with the model.
    adapter: Option<Arc<Adapter>>,
    session: Mutex<Session>,
    inputs: Vec<String>,
    /// Special tokens before and after a text.
    opening: Vec<Piece>,
    closing: Vec<Piece>,
    query_prefix: Vec<Piece>,
    memory_prefix: Vec<Piece>,
    max_length: usize,
}

impl Encoder {
    /// Opens the model that `setting` names; `what` says in an error where that name came from.
    pub fn open(setting: &str, what: &'static str, library: &Path, threads: usize) -> Result<Self> {
        let directory = ModelDirectory::read(setting, what)?;
        let tokenizer = open_tokenizer(&directory, what)?;
        let session = runtime::open(library, &directory.graph, threads)?;
        let (opening, closing) = special_pieces(&tokenizer)?;
        let adapter = directory.adapter.as_ref().map(|file| adapter::read(file, directory.dim)).transpose()?;
        let identity = EncoderIdentity {
            id: directory.fingerprint()?,
            name: directory.name.clone(),
            dim: directory.dim,
            pooling: directory.pooling.name(),
        };
        Ok(Self {
            pooling: directory.pooling,
            inputs: session.inputs().iter().map(|input| input.name().to_owned()).collect(),
            session: Mutex::new(session),
            query_prefix: pieces(&tokenizer, &directory.query_prefix)?,
            memory_prefix: pieces(&tokenizer, &directory.memory_prefix)?,
            max_length: directory.max_length,
            identity,
            tokenizer,
            adapter: adapter.map(Arc::new),
            opening,
            closing,
        })
    }

    pub fn identity(&self) -> &EncoderIdentity {
        &self.identity
    }

    /// The query adapter that came with the model.
    pub fn adapter(&self) -> Option<&Arc<Adapter>> {
        self.adapter.as_ref()
    }

    /// The wordpieces of a text, without special tokens, uncut.
    pub fn pieces(&self, text: &str) -> Result<Vec<Piece>> {
        pieces(&self.tokenizer, text)
    }

    /// Encodes queries, each behind the model's query prefix. Returns their pieces too.
    pub fn encode_queries(&self, queries: &[&str]) -> Result<Vec<(Vec<Piece>, Encoded)>> {
        let mut inputs = Vec::with_capacity(queries.len());
        for query in queries {
            let own = self.pieces(query)?;
            if own.len() > LONGEST_QUERY {
                let allowed = format!("at most {LONGEST_QUERY} wordpieces, about {} characters", 4 * LONGEST_QUERY);
                return Err(Error::argument("query", format!("{} wordpieces long", own.len()), allowed));
            }
            inputs.push(Input { context: Vec::new(), own });
        }
        let encoded = self.run(&inputs, &self.query_prefix)?;
        Ok(inputs.into_iter().map(|input| input.own).zip(encoded).collect())
    }

    /// Encodes memories, each behind its context and the model's memory prefix; results in the order of the inputs.
    ///
    /// A text longer than the encoder reads at once is encoded in consecutive windows, each behind the pieces before it,
    /// so that every piece gets its state.
    pub fn encode_memories(&self, inputs: &[Input]) -> Result<Vec<Encoded>> {
        self.run(inputs, &self.memory_prefix)
    }

    /// The most pieces one window can hold next to special tokens and `prefix`.
    fn room(&self, prefix: &[Piece]) -> usize {
        self.max_length.saturating_sub(self.opening.len() + self.closing.len() + prefix.len()).max(1)
    }

    fn run(&self, inputs: &[Input], prefix: &[Piece]) -> Result<Vec<Encoded>> {
        let room = self.room(prefix);
        let mut windows: Vec<Window> =
            inputs.iter().enumerate().flat_map(|(input, text)| split(input, text, room)).collect();
        // Neighbours in a batch are of like length, so little is padded.
        windows.sort_by_key(|window| (window.context.len() + window.own.len(), window.input, window.start));

        let dim = self.identity.dim;
        let mut hidden: Vec<Vec<f32>> = inputs.iter().map(|input| vec![0.0; input.own.len() * dim]).collect();
        let mut cls: Vec<Option<Vec<f32>>> = vec![None; inputs.len()];
        let mut rest = windows.as_slice();
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(batch_length(rest, prefix.len()));
            rest = later;
            let rows = self.forward(batch, prefix)?;
            for (window, row) in batch.iter().zip(rows) {
                let first = (self.opening.len() + prefix.len() + window.context.len()) * dim;
                let length = window.own.len() * dim;
                let start = window.start * dim;
                hidden[window.input][start..start + length].copy_from_slice(&row[first..first + length]);
                if window.start == 0 {
                    cls[window.input] = Some(row[..dim].to_vec());
                }
            }
        }
        Ok(hidden.into_iter().zip(cls).map(|(states, cls)| self.finish(states, cls)).collect())
    }

    /// Pools the raw states of one text and brings them to length one.
    fn finish(&self, mut states: Vec<f32>, cls: Option<Vec<f32>>) -> Encoded {
        let dim = self.identity.dim;
        let mut embedding = match (self.pooling, cls) {
            (Pooling::Cls, Some(state)) => state,
            _ => states.chunks_exact(dim).fold(vec![0.0; dim], |mut sum, state| {
                sum.iter_mut().zip(state).for_each(|(s, x)| *s += x);
                sum
            }),
        };
        normalise(&mut embedding);
        states.chunks_exact_mut(dim).for_each(normalise);
        Encoded { embedding, states }
    }

    /// One pass of the model: for each window its raw states, special tokens, prefix and context included.
    fn forward(&self, batch: &[Window], prefix: &[Piece]) -> Result<Vec<Vec<f32>>> {
        let sequences: Vec<Vec<Piece>> =
            batch.iter().map(|w| [&self.opening, prefix, w.context, w.own, &self.closing].concat()).collect();
        let typed = sequences.into_iter().map(|pieces| TypedPieces { types: vec![0; pieces.len()], pieces }).collect();
        let batch = PaddedBatch::new(typed);
        let (shape, values) = batch.forward(&self.session, &self.inputs)?;
        let dim = self.identity.dim;
        if shape != [batch.rows, batch.width, dim] {
            let want = [batch.rows, batch.width, dim];
            return Err(Error::Model(format!(
                "the encoder's first output has shape {shape:?}, expected {want:?} [batch, tokens, hidden_size]"
            )));
        }
        Ok(values.chunks_exact(batch.width * dim).map(<[f32]>::to_vec).collect())
    }
}

/// A stretch of an input that fits the model.
struct Window<'a> {
    input: usize,
    /// Where `own` starts in the input's own pieces.
    start: usize,
    context: &'a [Piece],
    own: &'a [Piece],
}

/// Cuts one input into windows of at most `room` pieces.
///
/// A text that fits is one window, with as much of the end of its context as fits in front. A longer one is cut into windows
/// that each read up to as many pieces before them as the input has context, and at least a quarter of the room, so that no
/// window but the first starts blind.
fn split(input: usize, text: &Input, room: usize) -> Vec<Window<'_>> {
    let own = text.own.as_slice();
    if own.len() <= room {
        let context = &text.context[text.context.len().saturating_sub(room - own.len())..];
        return vec![Window { input, start: 0, context, own }];
    }
    let before = text.context.len().max(room / 4).min(room / 2);
    let mut windows = vec![Window { input, start: 0, context: &[], own: &own[..room] }];
    let mut start = room;
    while start < own.len() {
        let end = (start + room - before).min(own.len());
        windows.push(Window { input, start, context: &own[start - before..start], own: &own[start..end] });
        start = end;
    }
    windows
}

/// How many of the (sorted) windows go into the next batch.
fn batch_length(windows: &[Window], prefix: usize) -> usize {
    let length = |w: &Window| w.context.len() + w.own.len() + prefix + 2;
    let fits =
        windows.iter().take(BATCH_ROWS).enumerate().take_while(|(i, w)| (i + 1) * length(w) <= BATCH_TOKENS).count();
    fits.max(1)
}

/// Pieces with the segment each belongs to.
pub(super) struct TypedPieces {
    pub pieces: Vec<Piece>,
    pub types: Vec<u32>,
}

/// Sequences padded to the longest, as the model takes them.
pub(super) struct PaddedBatch {
    pub rows: usize,
    pub width: usize,
    ids: Vec<i64>,
    mask: Vec<i64>,
    types: Vec<i64>,
}

impl PaddedBatch {
    pub fn new(sequences: Vec<TypedPieces>) -> Self {
        let (rows, width) = (sequences.len(), sequences.iter().map(|s| s.pieces.len()).max().unwrap_or(0));
        let mut batch =
            Self { rows, width, ids: vec![0; rows * width], mask: vec![0; rows * width], types: vec![0; rows * width] };
        for (row, sequence) in sequences.iter().enumerate() {
            for (column, (&piece, &kind)) in sequence.pieces.iter().zip(&sequence.types).enumerate() {
                let at = row * width + column;
                (batch.ids[at], batch.mask[at], batch.types[at]) = (i64::from(piece), 1, i64::from(kind));
            }
        }
        batch
    }

    /// Runs the model and returns the shape and the values of its first output.
    pub fn forward(&self, session: &Mutex<Session>, inputs: &[String]) -> Result<(Vec<usize>, Vec<f32>)> {
        let failed = |error: ort::Error| Error::Model(error.to_string());
        let mut feeds: Vec<(&str, Tensor<i64>)> = Vec::with_capacity(inputs.len());
        for name in inputs {
            let values = match name.as_str() {
                "input_ids" => &self.ids,
                "attention_mask" => &self.mask,
                "token_type_ids" => &self.types,
                other => {
                    return Err(Error::Model(format!(
                        "the graph wants an input '{other}'; known are input_ids, attention_mask, token_type_ids"
                    )));
                }
            };
            feeds.push((name, Tensor::from_array(([self.rows, self.width], values.clone())).map_err(failed)?));
        }
        let mut session = session.lock().map_err(|_| Error::Internal("the model's lock is poisoned".into()))?;
        let outputs = session.run(feeds).map_err(failed)?;
        let first = outputs.values().next().ok_or_else(|| Error::Model("the graph has no output".into()))?;
        let (shape, values) = first.try_extract_tensor::<f32>().map_err(failed)?;
        Ok((shape.iter().map(|&n| n as usize).collect(), values.to_vec()))
    }
}

pub(super) fn open_tokenizer(directory: &ModelDirectory, what: &'static str) -> Result<Tokenizer> {
    let failed = |error: tokenizers::Error| broken(what, &directory.tokenizer, &error.to_string());
    let mut tokenizer = Tokenizer::from_file(&directory.tokenizer).map_err(failed)?;
    // Nothing is cut or padded behind our back.
    tokenizer.with_truncation(None).map_err(failed)?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

fn pieces(tokenizer: &Tokenizer, text: &str) -> Result<Vec<Piece>> {
    let encoding = tokenizer.encode_fast(text, false).map_err(|error| Error::Model(error.to_string()))?;
    Ok(encoding.get_ids().to_vec())
}

/// The special tokens the tokenizer puts before and after a single text.
fn special_pieces(tokenizer: &Tokenizer) -> Result<(Vec<Piece>, Vec<Piece>)> {
    let encoding = tokenizer.encode("a", true).map_err(|error| Error::Model(error.to_string()))?;
    let (ids, special) = (encoding.get_ids(), encoding.get_special_tokens_mask());
    let opening = special.iter().take_while(|&&s| s == 1).count();
    let closing = special.iter().rev().take_while(|&&s| s == 1).count().min(ids.len() - opening);
    Ok((ids[..opening].to_vec(), ids[ids.len() - closing..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(context: usize, own: usize) -> Input {
        Input { context: (0..context as u32).collect(), own: (1000..1000 + own as u32).collect() }
    }

    #[test]
    fn a_text_that_fits_is_one_window_behind_the_end_of_its_context() {
        let text = input(96, 200);
        let windows = split(0, &text, 254);
        assert_eq!(windows.len(), 1);
        assert_eq!(windows[0].context, &text.context[96 - 54..]);
        assert_eq!(split(0, &input(10, 0), 254)[0].own.len(), 0);
    }

    #[test]
    fn a_long_text_is_covered_once_by_windows_that_fit() {
        for (context, own) in [(0, 255), (96, 255), (96, 5000), (300, 254 * 3)] {
            let text = input(context, own);
            let windows = split(0, &text, 254);
            let covered: Vec<Piece> = windows.iter().flat_map(|w| w.own.to_vec()).collect();
            assert_eq!(covered, text.own);
            for window in &windows {
                assert!(window.context.len() + window.own.len() <= 254);
                assert_eq!(&text.own[window.start..window.start + window.own.len()], window.own);
                // what a window reads before itself is what stands before it
                assert_eq!(window.context, &text.own[window.start - window.context.len()..window.start]);
            }
            assert!(windows[1..].iter().all(|w| w.context.len() >= 63));
        }
    }

    #[test]
    fn a_batch_is_bounded_in_rows_and_tokens_but_never_empty() {
        let long = input(0, 254);
        let short = input(0, 5);
        let window = |text| split(0, text, 254).remove(0);
        let many: Vec<Window> = (0..100).map(|_| window(&short)).collect();
        assert_eq!(batch_length(&many, 0), BATCH_ROWS);
        let heavy: Vec<Window> = (0..100).map(|_| window(&long)).collect();
        assert_eq!(batch_length(&heavy, 0), BATCH_TOKENS / 256);
        assert_eq!(batch_length(&heavy[..1], 100_000), 1);
    }

    #[test]
    fn padding_is_masked() {
        let batch = PaddedBatch::new(vec![
            TypedPieces { pieces: vec![5, 6, 7], types: vec![0, 0, 1] },
            TypedPieces { pieces: vec![8], types: vec![0] },
        ]);
        assert_eq!((batch.rows, batch.width), (2, 3));
        assert_eq!(batch.ids, [5, 6, 7, 8, 0, 0]);
        assert_eq!(batch.mask, [1, 1, 1, 1, 0, 0]);
        assert_eq!(batch.types, [0, 0, 1, 0, 0, 0]);
    }
}
