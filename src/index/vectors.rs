//! Whole-turn vectors, compared with every one of them.

use super::Slot;
use crate::rank::evidence::dot;
use crate::rank::order::Scored;

/// The cosine of the query with each of the unit vectors.
pub fn scan<'a>(query: &[f32], vectors: impl IntoIterator<Item = (Slot, &'a [f32])>) -> Vec<Scored<Slot>> {
    vectors.into_iter().map(|(id, vector)| Scored { id, score: f64::from(dot(query, vector)) }).collect()
}
