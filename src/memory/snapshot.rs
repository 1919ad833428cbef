//! A store as it was at one moment, ready to be searched. Immutable: a change makes a new one that shares what stayed.

use std::collections::HashMap;
use std::sync::Arc;

use uuid::Uuid;

use crate::error::Result;
use crate::index::Slot;
use crate::index::words::Words;
use crate::model::encoder::Piece;
use crate::rank::codes::TokenCodes;
use crate::store::turns::Turn;

/// A turn with what it was encoded to.
#[derive(Debug)]
pub struct Memory {
    pub turn: Turn,
    /// The text that was encoded; also what the words are taken from.
    pub text: String,
    pub content_hash: String,
    pub pieces: Vec<Piece>,
    pub embedding: Vec<f32>,
    pub codes: TokenCodes,
}

/// The memories of a store, in slots, with what is derived from all of them.
pub struct Snapshot {
    memories: Vec<Arc<Memory>>,
    slots: HashMap<Uuid, Slot>,
    document_frequency: HashMap<Piece, usize>,
    words: Words,
    /// Whether some turn has a date on which it ends.
    pub expiring: bool,
}

impl Snapshot {
    pub fn empty() -> Result<Self> {
        Ok(Self {
            memories: Vec::new(),
            slots: HashMap::new(),
            document_frequency: HashMap::new(),
            words: Words::build([])?,
            expiring: false,
        })
    }

    /// What this becomes when `changed` take the place of the memories with their ids, or are new, and `removed` go.
    ///
    /// Words are only added to when nothing changed or went; else they are indexed anew.
    pub fn with(&self, changed: Vec<Arc<Memory>>, removed: &[Uuid], expiring: bool) -> Result<Self> {
        let only_added = removed.is_empty() && changed.iter().all(|memory| !self.slots.contains_key(&memory.turn.id));
        let mut memories = self.memories.clone();
        if !only_added {
            let gone: std::collections::HashSet<Uuid> =
                removed.iter().copied().chain(changed.iter().map(|memory| memory.turn.id)).collect();
            memories.retain(|memory| !gone.contains(&memory.turn.id));
        }
        let kept = memories.len();
        memories.extend(changed);
        let slot = |place: usize| Slot(u32::try_from(place).unwrap_or(u32::MAX));
        let texts =
            |from: usize| memories.iter().enumerate().skip(from).map(|(i, memory)| (slot(i), memory.text.as_str()));
        let words = if only_added { self.words.extended(texts(kept))? } else { Words::build(texts(0))? };
        let mut document_frequency = if only_added { self.document_frequency.clone() } else { HashMap::new() };
        for memory in &memories[if only_added { kept } else { 0 }..] {
            let mut pieces = memory.pieces.clone();
            pieces.sort_unstable();
            pieces.dedup();
            pieces.into_iter().for_each(|piece| *document_frequency.entry(piece).or_default() += 1);
        }
        let slots = memories.iter().enumerate().map(|(i, memory)| (memory.turn.id, slot(i))).collect();
        Ok(Self { memories, slots, document_frequency, words, expiring })
    }

    pub fn len(&self) -> usize {
        self.memories.len()
    }

    pub fn is_empty(&self) -> bool {
        self.memories.is_empty()
    }

    pub fn memories(&self) -> impl Iterator<Item = (Slot, &Arc<Memory>)> {
        (0u32..).map(Slot).zip(&self.memories)
    }

    /// The memory in a slot of this snapshot.
    pub fn memory(&self, slot: Slot) -> Option<&Arc<Memory>> {
        self.memories.get(slot.0 as usize)
    }

    pub fn slot(&self, turn: Uuid) -> Option<Slot> {
        self.slots.get(&turn).copied()
    }

    /// How many memories hold a wordpiece.
    pub fn containing(&self, piece: Piece) -> usize {
        self.document_frequency.get(&piece).copied().unwrap_or(0)
    }

    pub fn words(&self) -> &Words {
        &self.words
    }
}
