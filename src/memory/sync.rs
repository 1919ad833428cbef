//! Brings states and index up to what was committed to `turns`, whoever wrote it.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Instant;

use duckdb::Connection;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::engine::{Epoch, Store};
use super::interrupt::Interrupt;
use super::progress;
use super::snapshot::{Draft, Snapshot};
use crate::error::{Error, Result};
use crate::index::cache::{Cache, Loaded};
use crate::index::segment::{Entry, Memory, Said, Segment, SessionName, Shape};
use crate::model::encoder::{Encoded, Encoder, Input};
use crate::rank::codes::Codes;
use crate::rank::parallel::in_parallel;
use crate::store::states::{self, StoredState};
use crate::store::transaction;
use crate::store::turns::{self, Fingerprint, Session, Turn};

/// Turns that are encoded and stored in one go. What was stored stays when a later group fails or the process dies.
const GROUP: usize = 256;

/// Turns that are read from the tables at a time: their states need not all be in memory at once.
const READ: u64 = 4096;

/// From so many turns on their states are found by reading all.
const LOOKED_UP: usize = 10_000;

/// Fewer sessions than this are not worth another thread.
const WORTH_A_THREAD: usize = 16;

/// Below this many turns a progress bar would only flicker.
const WORTH_A_BAR: usize = 64;

/// What a synchronisation is done with.
#[derive(Clone, Copy)]
pub struct Means<'a> {
    pub encoder: &'a Encoder,
    /// Where indexes are saved; `None`: nowhere.
    pub cache: Option<&'a Path>,
    pub threads: usize,
    pub progress: bool,
}

/// The index of one store: the newest snapshot, and by what it is known to be current.
#[derive(Default)]
pub struct StoreIndex {
    /// What made it.
    encoding: String,
    /// In which it was last found current.
    epoch: Option<Epoch>,
    sessions: HashMap<Session, Fingerprint>,
    expiring: bool,
    snapshot: Option<Arc<Snapshot>>,
    /// The segments the cache has.
    saved: Vec<String>,
    /// What was wrong with what had been saved.
    broken: Option<String>,
    /// What last kept it from being saved.
    unsaved: Option<String>,
}

/// A store as it is now.
pub struct Synchronised {
    pub snapshot: Arc<Snapshot>,
    /// Whether some turn has a date on which it ends.
    pub expiring: bool,
    pub report: SyncReport,
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
    entry: Entry,
    said: Said,
    text: String,
    input: Input,
}

/// Synchronises a store with its table `turns`, and returns the snapshot of what is committed there.
///
/// A session whose fingerprint is the one last seen is not looked at. Of the others, each turn is compared with its state by a
/// hash over its own wordpieces and those it is read behind, so a turn changed, inserted in the past or forgotten re-encodes
/// exactly the turns whose context held it. A READ_ONLY store gets its missing states in memory only.
pub fn sync(connection: &Connection, store: &Store, means: Means) -> Result<Synchronised> {
    check_encoder(store, means.encoder)?;
    let mut index = store.index()?;
    match bring_up(connection, store, means, &mut index) {
        // A file of the saved index turned out to be broken. Made anew from the tables it is whole.
        Err(error @ Error::Cache { .. }) => {
            index.discard(error.to_string());
            bring_up(connection, store, means, &mut index)
        }
        done => done,
    }
}

fn bring_up(connection: &Connection, store: &Store, means: Means, index: &mut StoreIndex) -> Result<Synchronised> {
    let started = Instant::now();
    let cache = index.open(store, means.cache);
    let base = index.snapshot.clone().unwrap_or_default();
    let epoch = store.epoch(connection)?;
    let unchanged = |index: &StoreIndex| {
        let (snapshot, expiring) = (base.clone(), index.expiring);
        Synchronised { snapshot, expiring, report: SyncReport::default() }
    };
    if index.epoch == Some(epoch) {
        return Ok(unchanged(index));
    }

    let mut draft = Draft::new(&base, shape(store), cache.as_ref());
    let read = transaction(connection, || read_changes(connection, store, means, index, &base, &mut draft))?;
    let Some(Changes { fingerprints, pending, added, updated, removed, states_missing }) = read else {
        (index.epoch, index.snapshot) = (Some(epoch), Some(base.clone()));
        return Ok(unchanged(index));
    };
    let encoded = pending.len();
    encode(connection, store, means, pending, &mut draft)?;
    let mut report = SyncReport { added, updated, removed, encoded, seconds: 0.0 };
    if !store.database.read_only && (states_missing || removed > 0) {
        report.removed = removed.max(states::delete_orphans(connection, &store.database)?);
        store.learned_anew()?;
    }
    let (snapshot, problem) = draft.finish()?;
    let snapshot = Arc::new(snapshot);
    index.unsaved = problem.map(|error| error.to_string());
    index.sessions = fingerprints.sessions;
    index.expiring = fingerprints.expiring > 0;
    index.snapshot = Some(snapshot.clone());
    // The turns are as they were read for as long as it lasts; it outlasts the writing of states.
    index.epoch = Some(epoch);
    index.save(cache.as_ref());
    report.seconds = started.elapsed().as_secs_f64();
    Ok(Synchronised { snapshot, expiring: index.expiring, report })
}

/// Takes turns out of the index and out of what is saved of it, before it is synchronised again.
pub fn drop_turns(store: &Store, index: &mut StoreIndex, cache: Option<&Path>, turns: &[Uuid]) -> Result<()> {
    let cache = index.open(store, cache);
    let Some(base) = index.snapshot.clone() else { return Ok(()) };
    let mut draft = Draft::new(&base, shape(store), cache.as_ref());
    for &turn in turns {
        draft.remove(turn);
        // Its session has to be looked at again, whatever is left of it.
        if let Some(entry) = known(&base, turn) {
            index.sessions.insert(entry.session.as_deref().map(str::to_owned), Fingerprint::default());
        }
    }
    match draft.finish() {
        Ok((snapshot, problem)) => {
            index.unsaved = problem.map(|error| error.to_string());
            (index.snapshot, index.epoch) = (Some(Arc::new(snapshot)), None);
            index.save(cache.as_ref());
            Ok(())
        }
        // What cannot be read cannot be rewritten, and must not stay.
        Err(error) => {
            index.discard(error.to_string());
            cache.map_or(Ok(()), |cache| cache.clear())
        }
    }
}

/// The bytes of all files that are saved of a store's index.
pub fn saved_bytes(store: &Store, cache: &Path) -> u64 {
    Cache::new(cache, &store.config.store_id, &encoding(store)).bytes()
}

/// Everything a state depends on besides the turns.
fn encoding(store: &Store) -> String {
    let config = &store.config.encoder;
    format!("{} {} {} {:?}", config.id, config.context, config.code_bits, store.template)
}

fn shape(store: &Store) -> Shape {
    Shape { dim: store.config.encoder.dim, bits: store.bits }
}

impl StoreIndex {
    /// How many segments there are in memory; `None` before the first synchronisation.
    pub fn segments(&self) -> Option<usize> {
        self.snapshot.as_ref().map(|snapshot| snapshot.segments().len())
    }

    /// What kept it from being read or saved.
    pub fn problems(&self) -> Vec<String> {
        self.broken.iter().chain(&self.unsaved).cloned().collect()
    }

    /// Lets go of what another encoding made, and reads what was saved when there is nothing yet. Returns where it is saved.
    fn open(&mut self, store: &Store, cache: Option<&Path>) -> Option<Cache> {
        let encoding = encoding(store);
        let cache = cache.map(|root| Cache::new(root, &store.config.store_id, &encoding));
        if self.encoding != encoding {
            *self = Self { encoding, ..Self::default() };
            let restored = cache.as_ref().map_or(Ok(()), |cache| self.restore(cache, shape(store)));
            if let (Err(error), Some(cache)) = (restored, &cache) {
                self.broken = Some(error.to_string());
                self.unsaved = cache.clear().err().map(|error| error.to_string());
            }
        }
        cache
    }

    fn restore(&mut self, cache: &Cache, shape: Shape) -> Result<()> {
        let Some(Loaded { segments, note }) = cache.load(shape)? else { return Ok(()) };
        let sessions: Vec<(Session, Fingerprint)> =
            postcard::from_bytes(&note).map_err(|error| Error::Internal(error.to_string()))?;
        self.sessions = sessions.into_iter().collect();
        self.saved = segments.iter().filter_map(|segment| segment.name().map(str::to_owned)).collect();
        self.snapshot = Some(Arc::new(Snapshot::new(segments)));
        Ok(())
    }

    /// Saves the index where its segments changed. It is derived: when that fails, the answers do not.
    fn save(&mut self, cache: Option<&Cache>) {
        let (Some(cache), Some(snapshot)) = (cache, &self.snapshot) else { return };
        let named: Vec<Arc<Segment>> =
            snapshot.segments().iter().filter(|segment| segment.name().is_some()).cloned().collect();
        let names: Vec<String> = named.iter().filter_map(|segment| segment.name().map(str::to_owned)).collect();
        if names == self.saved {
            return;
        }
        match self.note(snapshot).and_then(|note| cache.save(&named, note)) {
            Ok(true) => self.saved = names,
            Ok(false) => {}
            Err(error) => self.unsaved = Some(error.to_string()),
        }
    }

    /// The fingerprints of the sessions. Those of which some turn is in no file have one that no session has.
    fn note(&self, snapshot: &Snapshot) -> Result<Vec<u8>> {
        let unsaved = snapshot.segments().iter().filter(|segment| segment.name().is_none());
        let partly: HashSet<Option<&str>> =
            unsaved.flat_map(|segment| segment.entries()).map(|entry| entry.session.as_deref()).collect();
        let print = |(session, print): (&Session, &Fingerprint)| {
            let known = !partly.contains(&session.as_deref());
            (session.clone(), if known { print.clone() } else { Fingerprint::default() })
        };
        let sessions: Vec<(Session, Fingerprint)> = self.sessions.iter().map(print).collect();
        postcard::to_allocvec(&sessions).map_err(|error| Error::Internal(error.to_string()))
    }

    /// Forgets what is known, so that the next synchronisation begins anew from the tables.
    pub fn discard(&mut self, broken: String) {
        *self = Self { encoding: std::mem::take(&mut self.encoding), broken: Some(broken), ..Self::default() };
    }
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
#[derive(Default)]
struct Changes {
    fingerprints: turns::Fingerprints,
    /// Turns that must be encoded. The states of the others that changed are in the draft.
    pending: Vec<Pending>,
    added: usize,
    updated: usize,
    removed: usize,
    /// Whether there were not as many states as memories.
    states_missing: bool,
}

/// Puts into the draft what changed and has a state, and takes out what went. `None` when nothing changed.
fn read_changes(
    connection: &Connection,
    store: &Store,
    means: Means,
    index: &StoreIndex,
    base: &Snapshot,
    draft: &mut Draft,
) -> Result<Option<Changes>> {
    let database = &store.database;
    let fingerprints = turns::fingerprints(connection, database)?;
    // States that somebody took away are missed, whosever session they are of.
    let states_missing =
        !database.read_only && states::count(connection, database, &store.config.encoder.id)? != base.size();
    let before = &index.sessions;
    if !states_missing && fingerprints.sessions == *before && (fingerprints.expiring > 0) == index.expiring {
        return Ok(None);
    }
    let differs = |session: &Session, print: &Fingerprint| states_missing || before.get(session) != Some(print);
    let changed: Vec<(&Session, &Fingerprint)> =
        fingerprints.sessions.iter().filter(|(session, print)| differs(session, print)).collect();
    let gone = before.keys().filter(|session| !fingerprints.sessions.contains_key(*session));
    let touched: HashSet<Option<&str>> =
        changed.iter().map(|(session, _)| *session).chain(gone).map(|session| session.as_deref()).collect();

    let mut changes = Changes { states_missing, ..Changes::default() };
    let mut wanted = Wanted::new();
    let mut seen: HashSet<Uuid> = HashSet::new();
    for sessions in in_portions(&changed) {
        let turns = turns::of_sessions(connection, database, &sessions)?;
        let elsewhere =
            |turn: Uuid| known(base, turn).is_some_and(|entry| !touched.contains(&entry.session.as_deref()));
        if let Some(twice) = turns.iter().find(|turn| !seen.insert(turn.id) || elsewhere(turn.id)) {
            let problem = format!("turn_id {} more than once; give every turn an id of its own", twice.id);
            return Err(Error::Data { store: database.name.clone(), table: "turns", problem });
        }
        want(store, means, base, turns, states_missing, &mut wanted)?;
    }
    resume(connection, store, base, wanted, draft, &mut changes)?;
    for entry in base.entries().filter(|entry| touched.contains(&entry.session.as_deref())) {
        if !seen.contains(&entry.turn) {
            changes.removed += 1;
            draft.remove(entry.turn);
        }
    }
    changes.fingerprints = fingerprints;
    Ok(Some(changes))
}

/// The sessions, so many together that they have about [`READ`] turns.
fn in_portions<'a>(sessions: &[(&'a Session, &Fingerprint)]) -> Vec<Vec<&'a Session>> {
    let mut portions: Vec<Vec<&Session>> = Vec::new();
    let mut turns = READ;
    for (session, print) in sessions {
        if turns >= READ {
            portions.push(Vec::new());
            turns = 0;
        }
        turns += print.turns;
        portions.last_mut().into_iter().for_each(|portion| portion.push(session));
    }
    portions
}

/// Turns of which the state is wanted, whether it is at hand or must be made.
type Wanted = HashMap<Uuid, Pending>;

/// Finds the turns that differ from the snapshot, and all of them where states are missing. Tokenizing them is what takes time.
fn want(
    store: &Store,
    means: Means,
    base: &Snapshot,
    turns: Vec<Turn>,
    states_missing: bool,
    wanted: &mut Wanted,
) -> Result<()> {
    // A turn without a session is by itself.
    let together = |a: &Turn, b: &Turn| a.session.is_some() && a.session == b.session;
    let sessions: Vec<&[Turn]> = turns.chunk_by(together).collect();
    let parts = in_parallel(&sessions, means.threads, WORTH_A_THREAD, |sessions| -> Result<Vec<Pending>> {
        let read = sessions.iter().map(|session| read_behind(store, means.encoder, session));
        Ok(read.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    });
    for part in parts {
        let differing =
            part?.into_iter().filter(|turn| states_missing || known(base, turn.entry.turn) != Some(&turn.entry));
        wanted.extend(differing.map(|pending| (pending.entry.turn, pending)));
    }
    Ok(())
}

/// The turns of a session, each with the pieces it is read behind.
fn read_behind(store: &Store, encoder: &Encoder, turns: &[Turn]) -> Result<Vec<Pending>> {
    let context = store.config.encoder.context;
    let (mut before, mut last) = (Vec::new(), None);
    let session: SessionName = turns.first().and_then(|turn| turn.session.as_deref()).map(Arc::from);
    let mut read = Vec::with_capacity(turns.len());
    for turn in turns {
        let text = store.template.text(turn);
        let input = Input { context: before.clone(), own: encoder.pieces(&text)? };
        if context > 0 {
            before.extend(encoder.pieces(&store.template.context(turn))?);
            before.drain(..before.len().saturating_sub(context));
        }
        let content_hash = content_hash(&input, store.bits.count());
        let entry =
            Entry { turn: turn.id, session: session.clone(), before: last, turn_hash: turn_hash(turn), content_hash };
        last = Some(turn.id);
        let said = Said { speaker: turn.speaker.clone(), said_at: turn.said_at, content: turn.content.clone() };
        read.push(Pending { entry, said, text, input });
    }
    Ok(read)
}

fn known(base: &Snapshot, turn: Uuid) -> Option<&Entry> {
    base.slot(turn).and_then(|slot| base.entry(slot))
}

/// Puts the wanted turns into the draft whose state is stored; the others are pending.
fn resume(
    connection: &Connection,
    store: &Store,
    base: &Snapshot,
    mut wanted: Wanted,
    draft: &mut Draft,
    changes: &mut Changes,
) -> Result<()> {
    for pending in wanted.values() {
        let changed = known(base, pending.entry.turn).is_some_and(|known| known.turn_hash != pending.entry.turn_hash);
        changes.updated += usize::from(changed);
    }
    let mut stored_before = HashSet::new();
    let ids: Vec<Uuid> = wanted.keys().copied().collect();
    // Looking for so many takes longer than reading them all.
    let these = (ids.len() < LOOKED_UP).then_some(ids.as_slice());
    states::read(connection, &store.database, &store.config.encoder.id, these, |state| {
        let turn = state.turn;
        let Some(pending) = wanted.get(&turn) else { return Ok(()) };
        // A process that begins knows of a turn only what its state says: the wordpieces it had.
        if known(base, turn).is_none() && stored_before.insert(turn) {
            changes.updated += usize::from(state.pieces != pending.input.own);
        }
        if state.content_hash != hex(&pending.entry.content_hash) {
            return Ok(());
        }
        if let Some((embedding, tokens)) = sound(state, &pending.input, shape(store))
            && let Some(Pending { entry, said, text, input }) = wanted.remove(&turn)
            && known(base, turn) != Some(&entry)
        {
            draft.put(Memory { entry, said, text, pieces: input.own, embedding, tokens })?;
        }
        Ok(())
    })?;
    let made =
        |pending: &Pending| known(base, pending.entry.turn).is_some() || stored_before.contains(&pending.entry.turn);
    changes.added = wanted.values().filter(|pending| !made(pending)).count();
    // What a READ_ONLY store has no states for is in the snapshot.
    let kept = |pending: &Pending| store.database.read_only && known(base, pending.entry.turn) == Some(&pending.entry);
    changes.pending = wanted.into_values().filter(|pending| !kept(pending)).collect();
    Ok(())
}

/// What a stored state holds, if it has the shape it must have. One that has not is made anew.
fn sound(state: StoredState, input: &Input, shape: Shape) -> Option<(Vec<f32>, Codes)> {
    let codes = Codes::from_bytes(state.codes, &state.scales, shape.dim, shape.bits)?;
    let fits = state.embedding.len() == shape.dim && state.pieces == input.own && codes.len() == input.own.len();
    (fits && state.embedding.iter().all(|x| x.is_finite())).then_some((state.embedding, codes))
}

/// Over everything a state is computed from, but the encoder.
fn content_hash(input: &Input, bits: usize) -> [u8; 16] {
    let mut hash = Sha256::new();
    for pieces in [&input.context, &input.own] {
        hash.update((pieces.len() as u64).to_le_bytes());
        pieces.iter().for_each(|piece| hash.update(piece.to_le_bytes()));
    }
    hash.update([bits as u8]);
    let mut first = [0; 16];
    first.copy_from_slice(&hash.finalize()[..16]);
    first
}

/// Over what a turn is, in all columns that retrieval reads.
fn turn_hash(turn: &Turn) -> u64 {
    let mut hash = Sha256::new();
    for text in [turn.session.as_deref(), turn.speaker.as_deref(), Some(turn.content.as_str())] {
        hash.update(text.map_or(u64::MAX, |text| text.len() as u64).to_le_bytes());
        hash.update(text.unwrap_or_default());
    }
    hash.update(turn.said_at.unwrap_or(i64::MIN).to_le_bytes());
    hash.finalize().iter().take(8).fold(0, |n, &byte| n << 8 | u64::from(byte))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Encodes what is pending, the shortest first so that batches are of like length, and stores it group by group, each while the
/// next is encoded.
///
/// Ctrl-C ends it after the group at hand, with an error: what was stored stays, the rest is still pending.
fn encode(
    connection: &Connection,
    store: &Store,
    means: Means,
    mut pending: Vec<Pending>,
    draft: &mut Draft,
) -> Result<()> {
    if pending.is_empty() {
        return Ok(());
    }
    pending.sort_by_key(|pending| (pending.input.context.len() + pending.input.own.len(), pending.entry.turn));
    let (turns, mut stored) = (pending.len(), 0);
    let wanted = means.progress && turns >= WORTH_A_BAR;
    let bar = progress::bar(turns, "turns", &format!("encoding {}", store.database.name), wanted);
    let interrupt = Interrupt::watch()?;
    thread::scope(|scope| {
        let (sender, encoded) = sync_channel(1);
        let encoder = means.encoder;
        scope.spawn(move || {
            let mut pending = pending.into_iter().peekable();
            while pending.peek().is_some() {
                let group: Vec<Pending> = pending.by_ref().take(GROUP).collect();
                let inputs: Vec<Input> = group.iter().map(|pending| pending.input.clone()).collect();
                let states = encoder.encode_memories(&inputs);
                // Nobody takes them any more when something failed there.
                if sender.send((group, states)).is_err() {
                    return;
                }
            }
        });
        for (group, states) in encoded {
            let memories: Vec<Memory> = group
                .into_iter()
                .zip(states?)
                .map(|(pending, states)| remember(pending, states, shape(store)))
                .collect();
            if !store.database.read_only {
                let rows: Vec<StoredState> = memories.iter().map(row).collect();
                let encoder_id = &store.config.encoder.id;
                store.aside(connection, || states::replace(connection, &store.database, encoder_id, &rows))?;
            }
            stored += memories.len();
            bar.inc(memories.len() as u64);
            memories.into_iter().try_for_each(|memory| draft.put(memory))?;
            if interrupt.came() && stored < turns {
                return Err(Error::Interrupted { stored, turns });
            }
        }
        bar.finish_and_clear();
        Ok(())
    })
}

fn remember(pending: Pending, encoded: Encoded, shape: Shape) -> Memory {
    Memory {
        entry: pending.entry,
        said: pending.said,
        text: pending.text,
        pieces: pending.input.own,
        embedding: encoded.embedding,
        tokens: Codes::encode(&encoded.states, shape.dim, shape.bits),
    }
}

fn row(memory: &Memory) -> StoredState {
    StoredState {
        turn: memory.entry.turn,
        content_hash: hex(&memory.entry.content_hash),
        embedding: memory.embedding.clone(),
        pieces: memory.pieces.clone(),
        codes: memory.tokens.codes().to_vec(),
        scales: memory.tokens.scale_bytes(),
    }
}
