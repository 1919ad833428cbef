//! What finds candidates in a store, and holds what they are ranked by: words, whole-turn vectors, and token states.
//!
//! All of it is derived from the tables. A store is cut into [`segment`]s, which never change: what is added makes new ones, and
//! what is changed or forgotten makes the ones that held it anew without it. The [`cache`] keeps them for the next process.

pub mod cache;
pub mod segment;
pub mod words;

/// The place of a memory in the snapshot of its store: which segment, and where in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    pub segment: u32,
    pub place: u32,
}
