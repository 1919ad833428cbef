//! The cache: the segments of a store in files, so that a new process reads them instead of making them again.
//!
//! A folder for each store and encoding holds a file a segment, which is written once, and a manifest that names those that
//! count, which is replaced as a whole. Everything carries a checksum and nothing is waited for: what a crash tore is found out
//! and made anew from the tables. Deleting any of it at any moment loses nothing.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::segment::{Saved, Segment, Shape};
use crate::error::{Error, Result};

const MANIFEST: &str = "manifest";
const LOCK: &str = "lock";

/// Changes with the format of the manifest or of a segment: what another version saved is passed over.
const FORMAT: u32 = 1;

/// Files that no manifest names are left alone for so long: another process may be about to name them.
const ORPHANED: Duration = Duration::from_secs(3600);

/// The folder of one store under one encoding.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

/// What was saved last.
pub struct Loaded {
    pub segments: Vec<Arc<Segment>>,
    pub note: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    format: u32,
    segments: Vec<String>,
    #[serde(with = "serde_bytes")]
    note: Vec<u8>,
}

impl Cache {
    /// `store` and `encoding` may be any text: they are hashed. Nothing is made yet.
    pub fn new(root: &Path, store: &str, encoding: &str) -> Self {
        let name =
            |text: &str| Sha256::digest(text).iter().take(12).map(|byte| format!("{byte:02x}")).collect::<String>();
        Self { folder: root.join(name(store)).join(name(encoding)) }
    }

    /// The segments last saved, with the note that was left with them. `None` when there are none.
    pub fn load(&self, shape: Shape) -> Result<Option<Loaded>> {
        let Some(manifest) = self.manifest()? else { return Ok(None) };
        let load = |name: &String| Ok(Arc::new(Segment::load(&self.folder, name, shape)?));
        let segments = manifest.segments.iter().map(load).collect::<Result<_>>()?;
        Ok(Some(Loaded { segments, note: manifest.note }))
    }

    fn manifest(&self) -> Result<Option<Manifest>> {
        let path = self.folder.join(MANIFEST);
        let mut bytes = Vec::new();
        match File::open(&path).and_then(|mut file| file.read_to_end(&mut bytes)) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed(MANIFEST, error)),
        }
        let broken = || self.failed(MANIFEST, "not what was written");
        let (body, checksum) = bytes.split_last_chunk::<4>().ok_or_else(broken)?;
        if crc32fast::hash(body).to_le_bytes() != *checksum {
            return Err(broken());
        }
        let manifest: Manifest = postcard::from_bytes(body).map_err(|error| self.failed(MANIFEST, error))?;
        Ok((manifest.format == FORMAT).then_some(manifest))
    }

    /// Writes a segment to a file, to be named by the next manifest.
    pub fn keep(&self, segment: &Segment) -> Result<Saved> {
        self.make_folder()?;
        segment.save(&self.folder)
    }

    /// Names the segments that count from now on, of those that have a file, with a note to find beside them, and removes the files of all others.
    ///
    /// False, and nothing is done, when another process is at it, or when a segment's file is gone.
    pub fn save(&self, segments: &[Arc<Segment>], note: Vec<u8>) -> Result<bool> {
        self.make_folder()?;
        let lock = File::create(self.folder.join(LOCK)).map_err(|error| self.failed(LOCK, error))?;
        let names: Vec<String> = segments.iter().filter_map(|segment| segment.name().map(str::to_owned)).collect();
        if lock.try_lock().is_err() || !names.iter().all(|name| self.folder.join(name).exists()) {
            return Ok(false);
        }
        // Whatever the old one says, or if it is broken, its files are no longer needed.
        let before = self.manifest().ok().flatten().map_or_else(Vec::new, |manifest| manifest.segments);
        let manifest = Manifest { format: FORMAT, segments: names.clone(), note };
        let mut bytes = postcard::to_allocvec(&manifest).map_err(|error| Error::Internal(error.to_string()))?;
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        let fresh = format!("{}.new", Uuid::now_v7().simple());
        let written = File::create_new(self.folder.join(&fresh)).and_then(|mut file| file.write_all(&bytes));
        written
            .and_then(|()| fs::rename(self.folder.join(&fresh), self.folder.join(MANIFEST)))
            .map_err(|error| self.failed(MANIFEST, error))?;
        self.tidy(&names, &before).map_err(|error| self.failed("", error))?;
        Ok(true)
    }

    /// Removes the files that were named and are no more, what a process left that died, and what other encodings left.
    fn tidy(&self, named: &[String], before: &[String]) -> io::Result<()> {
        for file in fs::read_dir(&self.folder)? {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            if [MANIFEST, LOCK].contains(&name.as_str()) || named.contains(&name) {
                continue;
            }
            let old = || file.metadata().and_then(|data| data.modified()).is_ok_and(is_old);
            if before.contains(&name) || old() {
                gone(fs::remove_file(file.path()))?;
            }
        }
        for sibling in self.folder.parent().map(fs::read_dir).transpose()?.into_iter().flatten() {
            let sibling = sibling?.path();
            if sibling != self.folder {
                gone(fs::remove_dir_all(sibling))?;
            }
        }
        Ok(())
    }

    /// Removes all that is saved.
    pub fn clear(&self) -> Result<()> {
        gone(fs::remove_dir_all(&self.folder)).map_err(|error| self.failed("", error))
    }

    fn make_folder(&self) -> Result<()> {
        let mut builder = fs::DirBuilder::new();
        // What was said is nobody else's.
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.recursive(true).create(&self.folder).map_err(|error| self.failed("", error))
    }

    /// The bytes of all files.
    pub fn bytes(&self) -> u64 {
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).map(|data| data.len()).sum()
    }

    fn failed(&self, file: &str, problem: impl std::fmt::Display) -> Error {
        Error::Cache { file: self.folder.join(file).display().to_string(), problem: problem.to_string() }
    }
}

fn is_old(changed: SystemTime) -> bool {
    SystemTime::now().duration_since(changed).is_ok_and(|age| age > ORPHANED)
}

/// Somebody else may have removed it first.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
