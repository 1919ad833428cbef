//! The ground floor: ranking, token evidence and learning as plain functions.
//!
//! Numbers in, numbers out. Nothing here knows DuckDB, a model, a file or a clock; seeds and times are passed in, and the
//! same input gives the same output on every run.

pub mod adapter;
pub mod codes;
pub mod conversation;
pub mod cues;
pub mod evidence;
pub mod feedback;
pub mod fuse;
pub mod kernel;
pub mod likeness;
pub mod order;
pub mod parallel;
pub mod precedent;
pub mod suppression;
pub mod training;
pub mod watch;
pub mod weight;
