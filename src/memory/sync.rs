//! Brings states and index up to what was committed to `turns`, whoever wrote it.

use std::collections::{HashMap, HashSet};
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Instant;

use duckdb::Connection;
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::engine::Store;
use super::snapshot::{Memory, Snapshot};
use crate::error::{Error, Result};
use crate::model::encoder::{Encoded, Encoder, Input};
use crate::rank::codes::{Bits, TokenCodes};
use crate::store::states::{self, StoredState};
use crate::store::transaction;
use crate::store::turns::{self, Fingerprint, Fingerprints, Session, Turn};

/// Turns that are encoded and stored in one go. What was stored stays when a later group fails or the process dies.
const GROUP: usize = 256;

/// Below this many turns a progress bar would only flicker.
const WORTH_A_BAR: usize = 64;

/// The index of one store: the newest snapshot, and by what it is known to be current.
#[derive(Default)]
pub struct StoreIndex {
    /// Everything a state depends on besides the turns.
    encoding: String,
    sessions: HashMap<Session, Fingerprint>,
    snapshot: Option<Arc<Snapshot>>,
}

/// What a synchronisation did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SyncReport {
    pub added: usize,
    pub updated: usize,
    pub removed: usize,
    /// Turns that had to be encoded: the added and updated ones, and those whose context changed.
    pub encoded: usize,
    pub seconds: f64,
}

/// A turn whose state is not stored yet.
struct Pending {
    turn: Turn,
    text: String,
    content_hash: String,
    input: Input,
}

/// Synchronises a store with its table `turns`, and returns the snapshot of what is committed there.
///
/// A session whose fingerprint is the one last seen is not looked at. Of the others, each turn is compared with its state by a
/// hash over its own wordpieces and those it is read behind, so a turn changed, inserted in the past or forgotten re-encodes
/// exactly the turns whose context held it. A READ_ONLY store gets its missing states in memory only.
pub fn sync(
    connection: &Connection,
    store: &Store,
    encoder: &Encoder,
    progress: bool,
) -> Result<(Arc<Snapshot>, SyncReport)> {
    check_encoder(store, encoder)?;
    let started = Instant::now();
    let mut index = store.index()?;
    let config = &store.config.encoder;
    let encoding = format!("{} {} {} {:?}", config.id, config.context, config.code_bits, store.template);
    if index.encoding != encoding {
        *index = StoreIndex { encoding, ..StoreIndex::default() };
    }
    let base = match &index.snapshot {
        Some(snapshot) => snapshot.clone(),
        None => Arc::new(Snapshot::empty()?),
    };

    let changes = transaction(connection, || read_changes(connection, store, &index.sessions, &base))?;
    let Some(changes) = changes else { return Ok((base, SyncReport::default())) };
    let mut report = SyncReport { removed: changes.removed.len(), ..SyncReport::default() };
    let Resumed { mut memories, unsaved, pending, added, updated } =
        resume(store, encoder, &base, changes.turns, changes.states)?;
    (report.added, report.updated, report.encoded) = (added, updated, pending.len());
    save(connection, store, &unsaved)?;
    memories.extend(encode(connection, store, encoder, pending, progress)?);
    let snapshot = Arc::new(base.with(memories, &changes.removed, changes.fingerprints.expiring > 0)?);
    if !store.database.read_only {
        let orphans = states::delete_orphans(connection, &store.database)?;
        report.removed = report.removed.max(orphans);
    }
    index.snapshot = Some(snapshot.clone());
    index.sessions = changes.fingerprints.sessions;
    report.seconds = started.elapsed().as_secs_f64();
    Ok((snapshot, report))
}

/// An error when the store was encoded by another encoder than `encoder`.
pub fn check_encoder(store: &Store, encoder: &Encoder) -> Result<()> {
    let (stored, current) = (&store.config.encoder, encoder.identity());
    if stored.id == current.id && stored.dim == current.dim {
        return Ok(());
    }
    Err(Error::EncoderMismatch {
        store: store.database.name.clone(),
        stored: format!("'{}' ({}, {} dimensions)", stored.name, stored.id, stored.dim),
        current: current.to_string(),
    })
}

/// What differs from the last snapshot.
struct Changes {
    fingerprints: Fingerprints,
    /// Every turn of every session that changed.
    turns: Vec<Turn>,
    /// What is stored of them.
    states: HashMap<Uuid, StoredState>,
    removed: Vec<Uuid>,
}

/// `None` when nothing changed.
fn read_changes(
    connection: &Connection,
    store: &Store,
    known: &HashMap<Session, Fingerprint>,
    base: &Snapshot,
) -> Result<Option<Changes>> {
    let fingerprints = turns::fingerprints(connection, &store.database)?;
    // States that somebody took away are missed, whosever session they are of.
    let missing = !store.database.read_only
        && states::count(connection, &store.database, &store.config.encoder.id)? != base.len();
    if !missing && fingerprints.sessions == *known && (fingerprints.expiring > 0) == base.expiring {
        return Ok(None);
    }
    let differs = |session: &Session, print: &Fingerprint| missing || known.get(session) != Some(print);
    let changed: Vec<&Session> =
        fingerprints.sessions.iter().filter(|(session, print)| differs(session, print)).map(|(s, _)| s).collect();
    let touched: HashSet<&Session> = changed
        .iter()
        .copied()
        .chain(known.keys().filter(|session| !fingerprints.sessions.contains_key(*session)))
        .collect();
    let turns = turns::of_sessions(connection, &store.database, &changed)?;
    let ids: HashSet<Uuid> = turns.iter().map(|turn| turn.id).collect();
    let elsewhere = |id: &Uuid| {
        let memory = base.slot(*id).and_then(|slot| base.memory(slot));
        memory.is_some_and(|memory| !touched.contains(&memory.turn.session))
    };
    let mut seen = HashSet::new();
    if let Some(twice) = turns.iter().find(|turn| !seen.insert(turn.id) || elsewhere(&turn.id)) {
        let problem = format!("turn_id {} more than once; give every turn an id of its own", twice.id);
        return Err(Error::Data { store: store.database.name.clone(), table: "turns", problem });
    }
    let gone = |memory: &Arc<Memory>| touched.contains(&memory.turn.session) && !ids.contains(&memory.turn.id);
    let removed = base.memories().filter(|(_, memory)| gone(memory)).map(|(_, memory)| memory.turn.id).collect();
    let wanted: Vec<Uuid> = ids.into_iter().collect();
    let these = (!base.is_empty() && !missing).then_some(wanted.as_slice());
    let states = states::read(connection, &store.database, &store.config.encoder.id, these)?;
    let states = states.into_iter().map(|state| (state.turn, state)).collect();
    Ok(Some(Changes { fingerprints, turns, states, removed }))
}

/// The turns of the sessions that changed, by what has to be done about them.
#[derive(Default)]
struct Resumed {
    /// Those that differ from the snapshot, but whose state is at hand.
    memories: Vec<Arc<Memory>>,
    /// Those whose state is at hand, but not stored.
    unsaved: Vec<Arc<Memory>>,
    /// Those that must be encoded.
    pending: Vec<Pending>,
    added: usize,
    updated: usize,
}

/// Compares each turn with the snapshot and with what is stored of it.
fn resume(
    store: &Store,
    encoder: &Encoder,
    base: &Snapshot,
    turns: Vec<Turn>,
    mut states: HashMap<Uuid, StoredState>,
) -> Result<Resumed> {
    let context = store.config.encoder.context;
    let mut resumed = Resumed::default();
    let mut before = Vec::new();
    let mut session: Session = None;
    for turn in turns {
        if turn.session.is_none() || turn.session != session {
            before.clear();
            session = turn.session.clone();
        }
        let text = store.template.text(&turn);
        let input = Input { context: before.clone(), own: encoder.pieces(&text)? };
        if context > 0 {
            before.extend(encoder.pieces(&store.template.context(&turn))?);
            before.drain(..before.len().saturating_sub(context));
        }
        let content_hash = content_hash(&input, store.bits);
        let known = base.slot(turn.id).and_then(|slot| base.memory(slot));
        let stored = states.remove(&turn.id);
        match (known, &stored) {
            (Some(memory), _) => resumed.updated += usize::from(memory.turn != turn),
            // A process that begins knows of a turn only what its state says: the wordpieces it had.
            (None, Some(state)) => resumed.updated += usize::from(state.pieces != input.own),
            (None, None) => resumed.added += 1,
        }
        let saved = stored.as_ref().is_some_and(|state| state.content_hash == content_hash);
        let (pieces, embedding, codes) = match known.filter(|memory| memory.content_hash == content_hash) {
            Some(memory) if memory.turn == turn && saved => continue,
            Some(memory) => (memory.pieces.clone(), memory.embedding.clone(), memory.codes.clone()),
            None => {
                let stored = stored.filter(|_| saved);
                match stored.and_then(|state| sound(state, &input, encoder.identity().dim, store.bits)) {
                    Some((embedding, codes)) => (input.own, embedding, codes),
                    None => {
                        resumed.pending.push(Pending { turn, text, content_hash, input });
                        continue;
                    }
                }
            }
        };
        let memory = Arc::new(Memory { turn, text, content_hash, pieces, embedding, codes });
        if !saved {
            resumed.unsaved.push(memory.clone());
        }
        resumed.memories.push(memory);
    }
    Ok(resumed)
}

/// What a stored state holds, if it has the shape it must have. One that has not is made anew.
fn sound(state: StoredState, input: &Input, dim: usize, bits: Bits) -> Option<(Vec<f32>, TokenCodes)> {
    let codes = TokenCodes::from_bytes(state.codes, &state.scales, dim, bits)?;
    let fits = state.embedding.len() == dim && state.pieces == input.own && codes.len() == input.own.len();
    (fits && state.embedding.iter().all(|x| x.is_finite())).then_some((state.embedding, codes))
}

/// Over everything a state is computed from, but the encoder.
fn content_hash(input: &Input, bits: Bits) -> String {
    let mut hash = Sha256::new();
    for pieces in [&input.context, &input.own] {
        hash.update((pieces.len() as u64).to_le_bytes());
        pieces.iter().for_each(|piece| hash.update(piece.to_le_bytes()));
    }
    hash.update([bits.count() as u8]);
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Encodes what is pending, the shortest first so that batches are of like length, and stores it group by group.
fn encode(
    connection: &Connection,
    store: &Store,
    encoder: &Encoder,
    mut pending: Vec<Pending>,
    progress: bool,
) -> Result<Vec<Arc<Memory>>> {
    pending.sort_by_key(|pending| (pending.input.context.len() + pending.input.own.len(), pending.turn.id));
    let bar = progress_bar(pending.len(), &store.database.name, progress);
    let mut memories = Vec::with_capacity(pending.len());
    let mut pending = pending.into_iter().peekable();
    while pending.peek().is_some() {
        let group: Vec<Pending> = pending.by_ref().take(GROUP).collect();
        let inputs: Vec<Input> = group.iter().map(|pending| pending.input.clone()).collect();
        let encoded = encoder.encode_memories(&inputs)?;
        let remembered = |(pending, encoded): (Pending, Encoded)| {
            Arc::new(remember(pending, encoded, encoder.identity().dim, store.bits))
        };
        let group: Vec<Arc<Memory>> = group.into_iter().zip(encoded).map(remembered).collect();
        save(connection, store, &group)?;
        bar.inc(group.len() as u64);
        memories.extend(group);
    }
    bar.finish_and_clear();
    Ok(memories)
}

/// Stores the states of memories, if the store can be written.
fn save(connection: &Connection, store: &Store, memories: &[Arc<Memory>]) -> Result<()> {
    if store.database.read_only || memories.is_empty() {
        return Ok(());
    }
    let rows: Vec<StoredState> = memories.iter().map(|memory| row(memory)).collect();
    states::replace(connection, &store.database, &store.config.encoder.id, &rows)
}

fn remember(pending: Pending, encoded: Encoded, dim: usize, bits: Bits) -> Memory {
    Memory {
        codes: TokenCodes::encode(&encoded.states, dim, bits),
        embedding: encoded.embedding,
        turn: pending.turn,
        text: pending.text,
        content_hash: pending.content_hash,
        pieces: pending.input.own,
    }
}

fn row(memory: &Memory) -> StoredState {
    StoredState {
        turn: memory.turn.id,
        content_hash: memory.content_hash.clone(),
        embedding: memory.embedding.clone(),
        pieces: memory.pieces.clone(),
        codes: memory.codes.codes().to_vec(),
        scales: memory.codes.scale_bytes(),
    }
}

fn progress_bar(turns: usize, store: &str, wanted: bool) -> ProgressBar {
    if !wanted || turns < WORTH_A_BAR || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("encoding {msg} {wide_bar} {pos}/{len} turns, {per_sec}, {eta} left");
    let bar = ProgressBar::new(turns as u64).with_message(store.to_owned());
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
