//! The query adapter: a small learned turn of the query's token states. Memories stay as they were encoded.
//!
//! T(h) = ‖h‖ (h + B A h) / max(‖h + B A h‖, ε), with A of r × d and B of d × r (seed: "Beyond the Final Embedding", query
//! adaptation). With B = 0 it is the identity.

use rand_xoshiro::Xoshiro256Plus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use super::kernel::dot;

/// ε: what keeps a state that the adapter cancels out from being divided by zero.
const SHORTEST: f32 = 1e-6;

/// A and B, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    dim: usize,
    rank: usize,
    pub(super) a: Vec<f32>,
    pub(super) b: Vec<f32>,
}

/// What an adapter made of some states, and what its gradient needs to know of the way there.
pub(super) struct Adapted {
    /// T(h), row by row.
    pub states: Vec<f32>,
    /// A h, `rank` values a row.
    pub inner: Vec<f32>,
    /// ‖h + B A h‖ of each row.
    pub lengths: Vec<f32>,
}

impl Adapter {
    /// `None` unless `a` holds rank × dim and `b` dim × rank finite numbers, and neither is 0.
    pub fn new(dim: usize, rank: usize, a: Vec<f32>, b: Vec<f32>) -> Option<Self> {
        let size = dim.checked_mul(rank).filter(|&size| size > 0)?;
        let sound = |matrix: &[f32]| matrix.len() == size && matrix.iter().all(|x| x.is_finite());
        (sound(&a) && sound(&b)).then_some(Self { dim, rank, a, b })
    }

    /// The identity, ready to be trained: A is random of variance 1/dim, B is 0. The same seed gives the same A.
    pub fn untrained(dim: usize, rank: usize, seed: u64) -> Self {
        let mut random = Xoshiro256Plus::seed_from_u64(seed);
        // Uniform on ±√(3/dim), which has that variance.
        let widest = (3.0 / dim.max(1) as f64).sqrt();
        let mut value = || (widest * (2.0 * (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64 - 1.0)) as f32;
        let a = (0..rank * dim).map(|_| value()).collect();
        Self { dim, rank, a, b: vec![0.0; dim * rank] }
    }

    pub fn dim(&self) -> usize {
        self.dim
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn a(&self) -> &[f32] {
        &self.a
    }

    pub fn b(&self) -> &[f32] {
        &self.b
    }

    /// T(h) for each unit state, rows of `dim` values.
    pub fn apply(&self, states: &[f32]) -> Vec<f32> {
        self.adapt(states).states
    }

    pub(super) fn adapt(&self, states: &[f32]) -> Adapted {
        let rows = states.len() / self.dim;
        let mut adapted =
            Adapted { states: states.to_vec(), inner: Vec::with_capacity(rows * self.rank), lengths: Vec::new() };
        for (state, turned) in states.chunks_exact(self.dim).zip(adapted.states.chunks_exact_mut(self.dim)) {
            let start = adapted.inner.len();
            adapted.inner.extend(self.a.chunks_exact(self.dim).map(|row| dot(row, state)));
            let inner = &adapted.inner[start..];
            for (value, row) in turned.iter_mut().zip(self.b.chunks_exact(self.rank)) {
                *value += dot(row, inner);
            }
            let length = dot(turned, turned).sqrt().max(SHORTEST);
            turned.iter_mut().for_each(|value| *value /= length);
            adapted.lengths.push(length);
        }
        adapted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// d = 2, r = 1, A = (1 0), B = (0 .75)ᵀ: (1, 0) becomes (1, .75) / 1.25, and (0, 1) stays.
    #[test]
    fn by_hand() {
        let adapter = Adapter::new(2, 1, vec![1.0, 0.0], vec![0.0, 0.75]).unwrap();
        let turned = adapter.apply(&[1.0, 0.0, 0.0, 1.0]);
        assert!(turned.iter().zip([0.8, 0.6, 0.0, 1.0]).all(|(got, want)| (got - want).abs() < 1e-6), "{turned:?}");
    }

    #[test]
    fn untrained_it_changes_nothing() {
        let adapter = Adapter::untrained(4, 2, 7);
        assert_eq!(adapter.apply(&[0.5, 0.5, -0.5, 0.5]), [0.5, 0.5, -0.5, 0.5]);
        assert_eq!(adapter, Adapter::untrained(4, 2, 7));
        assert_ne!(adapter, Adapter::untrained(4, 2, 8));
        assert!(adapter.a().iter().all(|x| x.abs() <= 0.75f32.sqrt()) && adapter.a().iter().any(|x| x.abs() > 0.1));
    }

    #[test]
    fn a_state_that_is_cancelled_out_is_finite() {
        let adapter = Adapter::new(1, 1, vec![1.0], vec![-1.0]).unwrap();
        assert_eq!(adapter.apply(&[1.0]), [0.0]);
    }

    #[test]
    fn matrices_of_another_shape_are_refused() {
        assert_eq!(Adapter::new(2, 1, vec![1.0], vec![0.0, 1.0]), None);
        assert_eq!(Adapter::new(2, 1, vec![1.0, f32::NAN], vec![0.0, 1.0]), None);
        assert_eq!(Adapter::new(2, 0, vec![], vec![]), None);
    }
}
