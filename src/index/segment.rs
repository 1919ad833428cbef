//! Segments: some memories of a store with their vectors, words and token states. Immutable.
//!
//! Vectors are 8-bit codes and are always compared with all of them: at 384 dimensions that is 384 bytes a memory, which two
//! cores read faster than a graph is walked, and a filter costs nothing. Token states are read for the few memories that are
//! ranked, from memory or from the segment's file.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::words::Words;
use crate::error::{Error, Result};
use crate::rank::codes::{Bits, Codes};

/// The most memories of a segment. Small enough that forgetting one turn rewrites little, large enough that a store of a million
/// turns has not many more than a hundred.
pub const FULL: usize = 8192;

/// What a segment's file begins with; the number changes with the format.
const MAGIC: &[u8; 8] = b"lethe\x00\x002";

/// A session's name, shared by its memories; `None` for the turns of none.
pub type SessionName = Option<Arc<str>>;

/// What is known of a memory besides what it is ranked by.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub turn: Uuid,
    pub session: SessionName,
    /// The turn before it in its session.
    pub before: Option<Uuid>,
    /// Over the turn as it stands in its table.
    pub turn_hash: u64,
    /// Over everything its state was computed from.
    pub content_hash: [u8; 16],
}

/// What was said, as a retrieval returns it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Said {
    pub speaker: Option<String>,
    /// Microseconds since 1970, UTC.
    pub said_at: Option<i64>,
    pub content: String,
}

/// A memory to be put into a segment.
pub struct Memory {
    pub entry: Entry,
    pub said: Said,
    /// What the words are taken from.
    pub text: String,
    pub pieces: Vec<u32>,
    /// Unit vector.
    pub embedding: Vec<f32>,
    /// One row a piece.
    pub tokens: Codes,
}

/// The shape of all states of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub dim: usize,
    /// Of the token states.
    pub bits: Bits,
}

/// Where the token states of one memory are, and what was said.
///
/// A record holds the codes of all tokens, then their scales, then their pieces, then the turn.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Record {
    start: u64,
    bytes: u32,
    tokens: u32,
    checksum: u32,
}

impl Record {
    /// Where the scales begin, the pieces, and the turn. `None` when the record is too short for its tokens.
    fn parts(self, shape: Shape) -> Option<[usize; 3]> {
        let tokens = self.tokens as usize;
        let scales = tokens * shape.bits.bytes(shape.dim);
        let parts = [scales, scales + tokens * 4, scales + tokens * 8];
        (parts[2] <= self.bytes as usize).then_some(parts)
    }
}

/// The records one after another.
enum Records {
    Memory(Vec<u8>),
    File { file: File, start: u64 },
}

/// A segment's file.
pub struct Saved {
    name: String,
    file: File,
    /// Where the records begin.
    start: u64,
}

/// A memory, read from its record.
#[derive(Debug, PartialEq)]
pub struct Recalled {
    pub pieces: Vec<u32>,
    /// The states of its tokens, one row a piece.
    pub tokens: Codes,
    pub said: Said,
}

pub struct Segment {
    shape: Shape,
    entries: Vec<Entry>,
    records: Vec<Record>,
    places: HashMap<Uuid, u32>,
    /// The memories by the turn before them.
    followers: HashMap<Uuid, u32>,
    /// The smallest and the largest id: ids that grow with time are in one segment only, and need not be looked for in others.
    range: Option<(Uuid, Uuid)>,
    containing: HashMap<u32, u32>,
    vectors: Codes,
    words: Words,
    tokens: Records,
    /// The file it is saved in, in the folder of the cache.
    name: Option<String>,
}

/// What is saved of a segment, but for the records.
#[derive(Serialize, Deserialize)]
struct Body {
    dim: u32,
    bits: u8,
    sessions: Vec<String>,
    entries: Vec<SavedEntry>,
    containing: Vec<(u32, u32)>,
    #[serde(with = "serde_bytes")]
    vector_codes: Vec<u8>,
    #[serde(with = "serde_bytes")]
    vector_scales: Vec<u8>,
    words: Vec<(String, serde_bytes::ByteBuf)>,
}

#[derive(Serialize, Deserialize)]
struct SavedEntry {
    turn: [u8; 16],
    session: Option<u32>,
    before: Option<[u8; 16]>,
    turn_hash: u64,
    content_hash: [u8; 16],
    record: Record,
}

impl Segment {
    /// Puts memories together; there must be one at least.
    pub fn build(shape: Shape, memories: Vec<Memory>) -> Result<Self> {
        let words = Words::build(memories.iter().map(|memory| memory.text.as_str()))?;
        let (mut entries, mut records) = (Vec::with_capacity(memories.len()), Vec::with_capacity(memories.len()));
        let mut vectors = Codes::encode(&[], shape.dim, Bits::Eight);
        let (mut containing, mut bytes) = (HashMap::new(), Vec::new());
        for memory in memories {
            vectors.push(&memory.embedding);
            count(&memory.pieces, &mut containing);
            records.push(append(&mut bytes, &memory)?);
            entries.push(memory.entry);
        }
        Ok(Self::new(shape, entries, records, containing, vectors, words, Records::Memory(bytes), None))
    }

    /// What `kept` says of several segments, in order, in one; `None` when nothing is left.
    pub fn merge(shape: Shape, parts: &[(&Self, Vec<bool>)]) -> Result<Option<Self>> {
        let (mut entries, mut records) = (Vec::new(), Vec::new());
        let mut vectors = Codes::encode(&[], shape.dim, Bits::Eight);
        let (mut containing, mut bytes) = (HashMap::new(), Vec::new());
        for (segment, kept) in parts {
            for place in (0..segment.size()).filter(|&place| kept[place]) {
                let (raw, record) = segment.record(place)?;
                count(&segment.pieces(&raw, record)?, &mut containing);
                records.push(Record { start: bytes.len() as u64, ..record });
                bytes.extend(raw);
                entries.push(segment.entries[place].clone());
                vectors.copy_row(&segment.vectors, place);
            }
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let with_some = parts.iter().filter(|(_, kept)| kept.contains(&true));
        let words =
            Words::merge(&with_some.map(|(segment, kept)| (&segment.words, kept.as_slice())).collect::<Vec<_>>())?;
        Ok(Some(Self::new(shape, entries, records, containing, vectors, words, Records::Memory(bytes), None)))
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a segment, once")]
    fn new(
        shape: Shape,
        entries: Vec<Entry>,
        records: Vec<Record>,
        containing: HashMap<u32, u32>,
        vectors: Codes,
        words: Words,
        tokens: Records,
        name: Option<String>,
    ) -> Self {
        let places = (0u32..).zip(&entries).map(|(place, entry)| (entry.turn, place)).collect();
        let behind = |(place, entry): (u32, &Entry)| Some((entry.before?, place));
        let followers = (0u32..).zip(&entries).filter_map(behind).collect();
        let ids = || entries.iter().map(|entry| entry.turn);
        let range = ids().min().zip(ids().max());
        Self { shape, entries, records, places, followers, range, containing, vectors, words, tokens, name }
    }

    /// How many memories. Never none.
    pub fn size(&self) -> usize {
        self.entries.len()
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn entry(&self, place: u32) -> Option<&Entry> {
        self.entries.get(place as usize)
    }

    pub fn place(&self, turn: Uuid) -> Option<u32> {
        let (smallest, largest) = self.range?;
        if turn < smallest || turn > largest {
            return None;
        }
        self.places.get(&turn).copied()
    }

    /// The memory that was said right after a turn.
    pub fn follower(&self, turn: Uuid) -> Option<u32> {
        self.followers.get(&turn).copied()
    }

    /// How many memories hold a wordpiece.
    pub fn containing(&self, piece: u32) -> usize {
        self.containing.get(&piece).copied().unwrap_or(0) as usize
    }

    /// The whole-turn vectors, a row a memory, 8 bits a value.
    pub fn vectors(&self) -> &Codes {
        &self.vectors
    }

    pub fn words(&self) -> &Words {
        &self.words
    }

    /// The file it is saved in.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Reads a memory. An error when it is not what was written.
    pub fn recall(&self, place: u32) -> Result<Recalled> {
        let (mut raw, record) = self.record(place as usize)?;
        let [scales, pieces, said] = self.parts(record)?;
        let own_pieces = self.pieces(&raw, record)?;
        let said = postcard::from_bytes(&raw[said..]).map_err(|error| self.broken(error))?;
        let scale_bytes = raw[scales..pieces].to_vec();
        raw.truncate(scales);
        let codes = Codes::from_bytes(raw, &scale_bytes, self.shape.dim, self.shape.bits);
        let codes = codes.ok_or_else(|| self.broken("token states of another shape"))?;
        Ok(Recalled { pieces: own_pieces, tokens: codes, said })
    }

    fn parts(&self, record: Record) -> Result<[usize; 3]> {
        record.parts(self.shape).ok_or_else(|| self.broken("a record that is too short"))
    }

    fn pieces(&self, raw: &[u8], record: Record) -> Result<Vec<u32>> {
        let [_, pieces, said] = self.parts(record)?;
        Ok(raw[pieces..said].chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    fn record(&self, place: usize) -> Result<(Vec<u8>, Record)> {
        let record = *self.records.get(place).ok_or_else(|| self.broken("no such memory"))?;
        let mut raw = vec![0; record.bytes as usize];
        match &self.tokens {
            Records::Memory(bytes) => {
                let start = record.start as usize;
                raw.copy_from_slice(&bytes[start..start + record.bytes as usize]);
            }
            Records::File { file, start } => {
                file.read_exact_at(&mut raw, start + record.start).map_err(|error| self.broken(error))?;
                if crc32fast::hash(&raw) != record.checksum {
                    return Err(self.broken("a record that is not what was written"));
                }
            }
        }
        Ok((raw, record))
    }

    fn broken(&self, why: impl std::fmt::Display) -> Error {
        Error::Cache { file: self.name.clone().unwrap_or_default(), problem: why.to_string() }
    }

    /// Writes the segment to a file of its own, from which it can then be [`Segment::read_from`].
    pub fn save(&self, folder: &Path) -> Result<Saved> {
        let name = format!("{}.segment", Uuid::now_v7().simple());
        let path = folder.join(&name);
        let failed = |error: io::Error| Error::Cache { file: path.display().to_string(), problem: error.to_string() };
        let body = postcard::to_allocvec(&self.body()?).map_err(|error| Error::Internal(error.to_string()))?;
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).map_err(failed)?;
        let mut head = MAGIC.to_vec();
        head.extend((body.len() as u64).to_le_bytes());
        head.extend(crc32fast::hash(&body).to_le_bytes());
        file.write_all(&head).and_then(|()| file.write_all(&body)).map_err(failed)?;
        for place in 0..self.size() {
            file.write_all(&self.record(place)?.0).map_err(failed)?;
        }
        Ok(Saved { name, file, start: (head.len() + body.len()) as u64 })
    }

    /// The same segment, its token states no longer in memory.
    pub fn read_from(self, saved: Saved) -> Self {
        let Saved { name, file, start } = saved;
        let mut next = 0;
        let moved = |record: Record| {
            let start = next;
            next += u64::from(record.bytes);
            Record { start, ..record }
        };
        let records = self.records.iter().copied().map(moved).collect();
        Self { records, tokens: Records::File { file, start }, name: Some(name), ..self }
    }

    fn body(&self) -> Result<Body> {
        let mut sessions: Vec<String> = Vec::new();
        let mut numbers: HashMap<&str, u32> = HashMap::new();
        let mut entries = Vec::with_capacity(self.size());
        let mut start = 0;
        for (entry, record) in self.entries.iter().zip(&self.records) {
            let session = entry.session.as_deref().map(|name| {
                *numbers.entry(name).or_insert_with(|| {
                    sessions.push(name.to_owned());
                    sessions.len() as u32 - 1
                })
            });
            let record = Record { start, ..*record };
            start += u64::from(record.bytes);
            let (turn, turn_hash, content_hash) = (*entry.turn.as_bytes(), entry.turn_hash, entry.content_hash);
            let before = entry.before.map(|turn| *turn.as_bytes());
            entries.push(SavedEntry { turn, session, before, turn_hash, content_hash, record });
        }
        let words = self.words.to_files()?;
        Ok(Body {
            dim: self.shape.dim as u32,
            bits: self.shape.bits.count() as u8,
            sessions,
            entries,
            containing: self.containing.iter().map(|(&piece, &memories)| (piece, memories)).collect(),
            vector_codes: self.vectors.codes().to_vec(),
            vector_scales: self.vectors.scale_bytes(),
            words: words.into_iter().map(|(path, bytes)| (path, bytes.into())).collect(),
        })
    }

    /// Reads a segment that was saved. An error when the file is not one of that shape, whole and unchanged; the token states
    /// are checked when they are read.
    pub fn load(folder: &Path, name: &str, shape: Shape) -> Result<Self> {
        let path = folder.join(name);
        let broken =
            |why: &dyn std::fmt::Display| Error::Cache { file: path.display().to_string(), problem: why.to_string() };
        let file = File::open(&path).map_err(|error| broken(&error))?;
        let length = file.metadata().map_err(|error| broken(&error))?.len();
        let mut head = [0; 20];
        file.read_exact_at(&mut head, 0).map_err(|error| broken(&error))?;
        let (magic, rest) = head.split_at(8);
        let (size, checksum) = rest.split_at(8);
        let size = size.iter().rev().fold(0u64, |n, &byte| n << 8 | u64::from(byte));
        let start = size.saturating_add(head.len() as u64);
        if magic != MAGIC || start > length {
            return Err(broken(&"another format, or less than was written"));
        }
        let mut body = vec![0; size as usize];
        file.read_exact_at(&mut body, head.len() as u64).map_err(|error| broken(&error))?;
        if crc32fast::hash(&body).to_le_bytes() != checksum {
            return Err(broken(&"not what was written"));
        }
        let body: Body = postcard::from_bytes(&body).map_err(|error| broken(&error))?;
        let tokens = Records::File { file, start };
        Self::from_body(body, tokens, length - start, name, shape)?
            .ok_or_else(|| broken(&"parts that do not fit each other"))
    }

    /// `None` when the parts do not fit each other.
    fn from_body(body: Body, tokens: Records, bytes: u64, name: &str, shape: Shape) -> Result<Option<Self>> {
        let sessions: Vec<Arc<str>> = body.sessions.into_iter().map(Into::into).collect();
        let (mut entries, mut records) = (Vec::with_capacity(body.entries.len()), Vec::new());
        let mut start = 0;
        for SavedEntry { turn, session, before, turn_hash, content_hash, record } in body.entries {
            let session = match session {
                None => None,
                Some(number) => match sessions.get(number as usize) {
                    Some(name) => Some(name.clone()),
                    None => return Ok(None),
                },
            };
            if record.start != start || record.parts(shape).is_none() {
                return Ok(None);
            }
            start += u64::from(record.bytes);
            let before = before.map(Uuid::from_bytes);
            entries.push(Entry { turn: Uuid::from_bytes(turn), session, before, turn_hash, content_hash });
            records.push(record);
        }
        let same_shape = (body.dim as usize, usize::from(body.bits)) == (shape.dim, shape.bits.count());
        let Some(vectors) = Codes::from_bytes(body.vector_codes, &body.vector_scales, shape.dim, Bits::Eight) else {
            return Ok(None);
        };
        let files: Vec<(String, Vec<u8>)> =
            body.words.into_iter().map(|(path, file)| (path, file.into_vec())).collect();
        let words = Words::from_files(&files)?;
        let fits = same_shape && start == bytes && vectors.len() == entries.len() && words.texts() == entries.len();
        let containing = body.containing.into_iter().collect();
        let name = Some(name.to_owned());
        Ok((fits && !entries.is_empty())
            .then(|| Self::new(shape, entries, records, containing, vectors, words, tokens, name)))
    }
}

/// Counts a memory for each of its distinct pieces.
fn count(pieces: &[u32], containing: &mut HashMap<u32, u32>) {
    let mut distinct = pieces.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    distinct.into_iter().for_each(|piece| *containing.entry(piece).or_default() += 1);
}

fn append(bytes: &mut Vec<u8>, memory: &Memory) -> Result<Record> {
    let start = bytes.len();
    bytes.extend(memory.tokens.codes());
    bytes.extend(memory.tokens.scale_bytes());
    memory.pieces.iter().for_each(|piece| bytes.extend(piece.to_le_bytes()));
    bytes.extend(postcard::to_allocvec(&memory.said).map_err(|error| Error::Internal(error.to_string()))?);
    let written = &bytes[start..];
    Ok(Record {
        start: start as u64,
        bytes: u32::try_from(written.len()).map_err(|_| Error::Internal("a turn of more than 4 GB".into()))?,
        tokens: memory.pieces.len() as u32,
        checksum: crc32fast::hash(written),
    })
}
