//! A store as it was at one moment, ready to be searched. Immutable: a change makes a new one that shares the segments that stayed.

use std::collections::HashSet;
use std::sync::Arc;

use uuid::Uuid;

use crate::error::{Error, Result};
use crate::index::Slot;
use crate::index::cache::Cache;
use crate::index::segment::{Entry, FULL, Memory, Recalled, Said, Segment, Shape};
use crate::model::encoder::Piece;
use crate::rank::codes::QueryCodes;
use crate::store::turns::Turn;

/// From so many memories on a segment is worth a file; smaller ones stay in memory, and are made again by the next process.
const WORTH_A_FILE: usize = 512;

/// Where a neighbour in the session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Before,
    After,
}

/// The memories of a store, in segments.
#[derive(Default)]
pub struct Snapshot {
    segments: Vec<Arc<Segment>>,
}

impl Snapshot {
    pub fn new(segments: Vec<Arc<Segment>>) -> Self {
        Self { segments }
    }

    pub fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    pub fn size(&self) -> usize {
        self.segments.iter().map(|segment| segment.size()).sum()
    }

    pub fn slot(&self, turn: Uuid) -> Option<Slot> {
        let found =
            (0u32..).zip(&self.segments).filter_map(|(segment, memories)| Some((segment, memories.place(turn)?)));
        found.map(|(segment, place)| Slot { segment, place }).next()
    }

    pub fn entry(&self, slot: Slot) -> Option<&Entry> {
        self.segments.get(slot.segment as usize)?.entry(slot.place)
    }

    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.segments.iter().flat_map(|segment| segment.entries())
    }

    fn segment(&self, slot: Slot) -> Result<&Segment> {
        let segment = self.segments.get(slot.segment as usize);
        segment.map(|segment| &**segment).ok_or_else(|| Error::Internal(format!("no segment for {slot:?}")))
    }

    /// Reads a memory.
    pub fn recall(&self, slot: Slot) -> Result<Recalled> {
        self.segment(slot)?.recall(slot.place)
    }

    /// The memory of the turn before this one in its session, or of the one after it.
    pub fn neighbour(&self, slot: Slot, side: Side) -> Option<Slot> {
        let entry = self.entry(slot)?;
        match side {
            Side::Before => self.slot(entry.before?),
            Side::After => {
                let found = (0u32..).zip(&self.segments);
                let mut found = found.filter_map(|(segment, memories)| Some((segment, memories.follower(entry.turn)?)));
                found.next().map(|(segment, place)| Slot { segment, place })
            }
        }
    }

    /// The turn that a memory is of.
    pub fn turn(&self, slot: Slot) -> Result<Turn> {
        let segment = self.segment(slot)?;
        let Said { speaker, said_at, content } = segment.recall(slot.place)?.said;
        let entry = segment.entry(slot.place).ok_or_else(|| Error::Internal(format!("no memory in {slot:?}")))?;
        let session = entry.session.as_deref().map(str::to_owned);
        Ok(Turn { id: entry.turn, session, speaker, said_at, content })
    }

    /// The inner product of the query with the whole-turn vector of a memory.
    pub fn similarity(&self, query: &QueryCodes, slot: Slot) -> Result<f32> {
        Ok(query.meet(self.segment(slot)?.vectors(), slot.place as usize))
    }

    /// How many memories hold a wordpiece.
    pub fn containing(&self, piece: Piece) -> usize {
        self.segments.iter().map(|segment| segment.containing(piece)).sum()
    }
}

/// The next snapshot while it is made.
pub struct Draft<'a> {
    base: &'a Snapshot,
    shape: Shape,
    cache: Option<&'a Cache>,
    fresh: Vec<Segment>,
    waiting: Vec<Memory>,
    /// Turns whose memories in `base` no longer count.
    gone: HashSet<Uuid>,
    /// What last kept a segment from being saved.
    problem: Option<Error>,
}

impl<'a> Draft<'a> {
    pub fn new(base: &'a Snapshot, shape: Shape, cache: Option<&'a Cache>) -> Self {
        Self { base, shape, cache, fresh: Vec::new(), waiting: Vec::new(), gone: HashSet::new(), problem: None }
    }

    /// Adds a memory, in the place of the one of the same turn if there is one.
    pub fn put(&mut self, memory: Memory) -> Result<()> {
        self.gone.insert(memory.entry.turn);
        self.waiting.push(memory);
        if self.waiting.len() == FULL {
            // Full, so it is never put together with another, and its token states need not stay in memory.
            let segment = self.close()?;
            let kept = segment.map(|segment| self.keep(segment));
            self.fresh.extend(kept);
        }
        Ok(())
    }

    pub fn remove(&mut self, turn: Uuid) {
        self.gone.insert(turn);
    }

    /// Makes a segment of the memories that wait for one.
    fn close(&mut self) -> Result<Option<Segment>> {
        let waiting = std::mem::take(&mut self.waiting);
        if waiting.is_empty() { Ok(None) } else { Segment::build(self.shape, waiting).map(Some) }
    }

    /// Saves a segment that is worth it. One that cannot be saved stays in memory.
    fn keep(&mut self, segment: Segment) -> Segment {
        let Some(cache) = self.cache.filter(|_| segment.size() >= WORTH_A_FILE && segment.name().is_none()) else {
            return segment;
        };
        match cache.keep(&segment) {
            Ok(saved) => segment.read_from(saved),
            Err(error) => {
                self.problem = Some(error);
                segment
            }
        }
    }

    /// The snapshot, and what kept it from being saved, if something did.
    pub fn finish(mut self) -> Result<(Snapshot, Option<Error>)> {
        let last = self.close()?;
        let mut segments: Vec<Arc<Segment>> = Vec::new();
        for segment in &self.base.segments {
            let kept: Vec<bool> = segment.entries().iter().map(|entry| !self.gone.contains(&entry.turn)).collect();
            if kept.iter().all(|kept| *kept) {
                segments.push(segment.clone());
            } else if let Some(rest) = Segment::merge(self.shape, &[(segment, kept)])? {
                segments.push(Arc::new(rest));
            }
        }
        segments.extend(std::mem::take(&mut self.fresh).into_iter().chain(last).map(Arc::new));
        while let Some(small) = segments.windows(2).position(|pair| merges(pair[0].size(), pair[1].size())) {
            let pair = [&*segments[small], &*segments[small + 1]].map(|segment| (segment, vec![true; segment.size()]));
            let merged = Segment::merge(self.shape, &pair)?;
            segments.splice(small..small + 2, merged.map(Arc::new));
        }
        let keep = |segment: Arc<Segment>| match Arc::try_unwrap(segment) {
            Ok(own) => Arc::new(self.keep(own)),
            Err(shared) => shared,
        };
        let segments = segments.into_iter().map(keep).collect();
        Ok((Snapshot { segments }, self.problem))
    }
}

/// Whether neighbours are put together. Each segment is at least twice as large as the next, up to a limit, so that a turn is
/// rewritten a few times however many are added one by one, and there are few segments.
fn merges(before: usize, after: usize) -> bool {
    before + after <= FULL && before < 2 * after
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::codes::{Bits, Codes};
    use proptest::prelude::*;

    const SHAPE: Shape = Shape { dim: 2, bits: Bits::Eight };

    fn memory(number: u16, word: &str) -> Memory {
        let angle = f32::from(number);
        Memory {
            entry: Entry {
                turn: Uuid::from_u128(u128::from(number)),
                session: (!number.is_multiple_of(3)).then(|| format!("s{}", number % 3).into()),
                before: (number > 3 && !number.is_multiple_of(3)).then(|| Uuid::from_u128(u128::from(number) - 3)),
                turn_hash: u64::from(number) << 8 | word.len() as u64,
                content_hash: [number as u8; 16],
            },
            said: Said { speaker: None, said_at: Some(i64::from(number)), content: word.to_owned() },
            text: format!("turn {word}"),
            pieces: vec![u32::from(number % 5), 7],
            embedding: vec![angle.cos(), angle.sin()],
            tokens: Codes::encode(&[angle.cos(), angle.sin(), 1.0, 0.0], 2, Bits::Eight),
        }
    }

    /// Everything that is known of each turn, by turn.
    fn contents(snapshot: &Snapshot) -> Vec<(Entry, Turn, Recalled, Vec<u8>)> {
        let mut all: Vec<_> = (0u32..)
            .zip(snapshot.segments())
            .flat_map(|(segment, memories)| (0..memories.size() as u32).map(move |place| Slot { segment, place }))
            .map(|slot| {
                let entry = snapshot.entry(slot).unwrap().clone();
                assert_eq!(snapshot.slot(entry.turn), Some(slot));
                let before = entry.before.and_then(|turn| snapshot.slot(turn));
                assert_eq!(snapshot.neighbour(slot, Side::Before), before);
                assert!(before.is_none_or(|before| snapshot.neighbour(before, Side::After) == Some(slot)));
                let vectors = snapshot.segments()[slot.segment as usize].vectors();
                let row = slot.place as usize * 2;
                (
                    entry,
                    snapshot.turn(slot).unwrap(),
                    snapshot.recall(slot).unwrap(),
                    vectors.codes()[row..row + 2].to_vec(),
                )
            })
            .collect();
        all.sort_by_key(|(entry, ..)| entry.turn);
        all
    }

    fn build(memories: impl IntoIterator<Item = Memory>) -> Snapshot {
        let empty = Snapshot::default();
        let mut draft = Draft::new(&empty, SHAPE, None);
        memories.into_iter().for_each(|memory| draft.put(memory).unwrap());
        draft.finish().unwrap().0
    }

    #[test]
    fn an_empty_store_has_no_segment() {
        let snapshot = build([]);
        assert_eq!((snapshot.size(), snapshot.segments().len()), (0, 0));
        let one = build([memory(1, "a")]);
        let mut draft = Draft::new(&one, SHAPE, None);
        draft.remove(Uuid::from_u128(1));
        assert_eq!(draft.finish().unwrap().0.segments().len(), 0);
    }

    #[test]
    fn turns_added_one_by_one_end_in_few_segments() {
        let mut snapshot = build([]);
        for number in 0..300 {
            let mut draft = Draft::new(&snapshot, SHAPE, None);
            draft.put(memory(number, "a")).unwrap();
            snapshot = draft.finish().unwrap().0;
        }
        assert_eq!(snapshot.size(), 300);
        assert!(snapshot.segments().len() <= 10, "{}", snapshot.segments().len());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// Whatever happened to a store one thing after another, it is as if it had been made at once.
        #[test]
        fn changes_lead_where_a_fresh_start_does(steps in prop::collection::vec(
            prop::collection::vec((0u16..30, 0u8..3), 1..6), 1..8))
        {
            let mut snapshot = build([]);
            let mut truth = std::collections::BTreeMap::new();
            for step in steps {
                let mut draft = Draft::new(&snapshot, SHAPE, None);
                let distinct: std::collections::BTreeMap<u16, u8> = step.into_iter().collect();
                for (number, what) in distinct {
                    match ["", "word", "longer word"][usize::from(what)] {
                        "" => {
                            draft.remove(Uuid::from_u128(u128::from(number)));
                            truth.remove(&number);
                        }
                        word => {
                            draft.put(memory(number, word)).unwrap();
                            truth.insert(number, word);
                        }
                    }
                }
                snapshot = draft.finish().unwrap().0;
            }
            let fresh = build(truth.iter().map(|(&number, word)| memory(number, word)));
            prop_assert_eq!(contents(&snapshot), contents(&fresh));
            for piece in 0..8 {
                prop_assert_eq!(snapshot.containing(piece), fresh.containing(piece));
            }
        }
    }
}
