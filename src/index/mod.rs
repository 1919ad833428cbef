//! What finds candidates in a store: words, and whole-turn vectors.

pub mod vectors;
pub mod words;

/// The place of a memory in the snapshot of its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);
