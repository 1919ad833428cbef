//! Trains a query adapter on questions whose answers are known.
//!
//! The loss of a question is contrastive (seed: "Beyond the Final Embedding", query adaptation): with S(m) the weighted late
//! interaction Σ_i w_i max_j ⟨T(h_i), h_{m,j}⟩ / Σ_i w_i, R the turns that answer it and C its candidates,
//!
//! L = −1/|R| Σ_{m ∈ R} ln( exp(S(m)/τ) / Σ_{c ∈ C} exp(S(c)/τ) ).
//!
//! The gradient goes through the memory token that was nearest. A and B are stepped by Adam (Kingma and Ba, 2015).

use std::sync::Arc;

use rand_xoshiro::Xoshiro256Plus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use super::adapter::Adapter;
use super::codes::{Codes, QueryCodes, Space};
use super::evidence::Evidence;
use super::kernel::dot;
use super::order::{self, Scored};
use super::parallel::in_parallel;

/// A question, its candidates and which of them answer it.
pub struct Example {
    /// The unit states of its tokens, row by row, before any adapter.
    pub states: Vec<f32>,
    /// w, one non-negative weight a token.
    pub weights: Vec<f64>,
    pub candidates: Vec<Arc<Codes>>,
    /// For each candidate whether it answers. At least one does.
    pub relevant: Vec<bool>,
}

/// How to train.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// τ of the loss.
    pub temperature: f32,
    /// Adam's step.
    pub learning_rate: f32,
    /// Questions a step.
    pub batch: usize,
    pub epochs: usize,
    /// After so many epochs without a lower loss on the held-out questions it ends.
    pub patience: usize,
    pub seed: u64,
    pub threads: usize,
}

/// The state of the training after an epoch; epoch 0 is before the first.
#[derive(Clone, Copy, Debug)]
pub struct Epoch {
    pub number: usize,
    /// The mean loss on the questions held out.
    pub held_out: f64,
}

/// The adapter of the epoch with the lowest loss on the held-out questions.
pub struct Trained {
    pub adapter: Adapter,
    /// 0 when no epoch was better than the start.
    pub epochs: usize,
}

/// Trains `adapter` on `examples`, until the loss on `held_out` no longer falls.
///
/// The same input gives the same adapter, on any number of threads. `each` is told of every epoch; its error ends the training.
pub fn train<E>(
    mut adapter: Adapter,
    examples: &[Example],
    held_out: &[Example],
    schedule: &Schedule,
    mut each: impl FnMut(Epoch) -> Result<(), E>,
) -> Result<Trained, E> {
    let mut random = Xoshiro256Plus::seed_from_u64(schedule.seed);
    let mut order: Vec<&Example> = examples.iter().collect();
    let mut steps = [Adam::new(adapter.a.len()), Adam::new(adapter.b.len())];
    let mut best = Trained { adapter: adapter.clone(), epochs: 0 };
    let mut lowest = mean_loss(&adapter, held_out, schedule);
    each(Epoch { number: 0, held_out: lowest })?;
    for number in 1..=schedule.epochs {
        shuffle(&mut order, &mut random);
        for batch in order.chunks(schedule.batch.max(1)) {
            let gradient = mean_gradient(&adapter, batch, schedule);
            steps[0].step(&mut adapter.a, &gradient.a, schedule.learning_rate);
            steps[1].step(&mut adapter.b, &gradient.b, schedule.learning_rate);
        }
        let loss = mean_loss(&adapter, held_out, schedule);
        each(Epoch { number, held_out: loss })?;
        if loss < lowest {
            (lowest, best) = (loss, Trained { adapter: adapter.clone(), epochs: number });
        }
        if number - best.epochs >= schedule.patience.max(1) {
            break;
        }
    }
    Ok(best)
}

/// NDCG at `depth` of each question under an adapter (`None`: as it is), among its candidates; equal scores in their order.
///
/// Gain 1, discount log2(rank + 1), over the ideal of the same depth, as trec_eval has it.
pub fn ndcg(adapter: Option<&Adapter>, examples: &[Example], depth: usize, threads: usize) -> Vec<f64> {
    let discount = |place: usize| 1.0 / (place as f64 + 2.0).log2();
    let of = |example: &Example| {
        let states = adapter.map_or_else(|| example.states.clone(), |adapter| adapter.apply(&example.states));
        let query = QueryCodes::encode(&states, example.dim());
        let scores = Evidence::gather(&query, example.candidates.iter().map(|codes| &**codes), 0)
            .scores(&example.weights, false);
        let scored = scores.into_iter().enumerate().map(|(id, score)| Scored { id, score }).collect();
        let best = order::top(scored, depth).into_iter().enumerate();
        let gain: f64 = best.filter(|(_, hit)| example.relevant[hit.id]).map(|(place, _)| discount(place)).sum();
        let relevant = example.relevant.iter().filter(|relevant| **relevant).count();
        gain / (0..relevant.min(depth)).map(discount).sum::<f64>()
    };
    in_parallel(examples, threads, 1, |part| part.iter().map(of).collect::<Vec<_>>()).concat()
}

impl Example {
    fn dim(&self) -> usize {
        self.states.len() / self.weights.len().max(1)
    }

    /// w_i / Σ w.
    fn shares(&self) -> Vec<f32> {
        let total: f64 = self.weights.iter().sum();
        self.weights.iter().map(|weight| (weight / total.max(f64::MIN_POSITIVE)) as f32).collect()
    }
}

/// A question met with its candidates: how near, and which of their tokens was nearest.
struct Met {
    loss: f64,
    /// ∂L/∂S(m) of each candidate.
    slopes: Vec<f32>,
    /// Row m holds, for each query token, the nearest token of candidate m.
    nearest: Vec<usize>,
}

fn meet(states: &[f32], example: &Example, shares: &[f32], temperature: f32) -> Met {
    let tokens = shares.len();
    let query = QueryCodes::encode(states, example.dim());
    let mut space = Space::default();
    let mut nearest = Vec::with_capacity(example.candidates.len() * tokens);
    let mut logits = Vec::with_capacity(example.candidates.len());
    for codes in &example.candidates {
        let mut best = vec![(-1f32, 0); tokens];
        let mut passed = 0;
        query.interact(codes, &mut space, |token, similarity| {
            if similarity > best[token].0 {
                best[token] = (similarity, passed / tokens);
            }
            passed += 1;
        });
        logits.push(best.iter().zip(shares).map(|((b, _), share)| b * share).sum::<f32>() / temperature);
        nearest.extend(best.into_iter().map(|(_, row)| row));
    }
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = logits.iter().map(|logit| (logit - highest).exp()).sum();
    let normaliser = highest + total.ln();
    let target = 1.0 / example.relevant.iter().filter(|relevant| **relevant).count().max(1) as f32;
    let mut loss = 0.0;
    let slope = |(&logit, &relevant): (&f32, &bool)| {
        let target = if relevant { target } else { 0.0 };
        loss -= f64::from(target * (logit - normaliser));
        ((logit - normaliser).exp() - target) / temperature
    };
    let slopes = logits.iter().zip(&example.relevant).map(slope).collect();
    Met { loss, slopes, nearest }
}

struct Gradient {
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Gradient {
    fn zero(adapter: &Adapter) -> Self {
        Self { a: vec![0.0; adapter.a.len()], b: vec![0.0; adapter.b.len()] }
    }

    fn add(&mut self, other: &Self, share: f32) {
        let add = |to: &mut [f32], from: &[f32]| to.iter_mut().zip(from).for_each(|(x, y)| *x += share * y);
        add(&mut self.a, &other.a);
        add(&mut self.b, &other.b);
    }
}

fn gradient(adapter: &Adapter, example: &Example, temperature: f32) -> Gradient {
    let (dim, rank, shares) = (adapter.dim(), adapter.rank(), example.shares());
    let adapted = adapter.adapt(&example.states);
    let met = meet(&adapted.states, example, &shares, temperature);
    // ∂L/∂T(h_i)
    let mut upstream = vec![0f32; adapted.states.len()];
    for ((codes, slope), nearest) in
        example.candidates.iter().zip(&met.slopes).zip(met.nearest.chunks_exact(shares.len()))
    {
        for ((row, &place), share) in upstream.chunks_exact_mut(dim).zip(nearest).zip(&shares) {
            codes.add_row(place, slope * share, row);
        }
    }
    let mut gradient = Gradient::zero(adapter);
    let turned = adapted.states.chunks_exact(dim).zip(&adapted.lengths);
    let read = example.states.chunks_exact(dim).zip(adapted.inner.chunks_exact(rank));
    for ((up, (turned, length)), (state, inner)) in upstream.chunks_exact_mut(dim).zip(turned).zip(read) {
        // Through the rescaling: only what is across T(h) turns it.
        let along = dot(up, turned);
        up.iter_mut().zip(turned).for_each(|(x, t)| *x = (*x - along * t) / length);
        let mut back = vec![0f32; rank];
        for ((&x, to), row) in up.iter().zip(gradient.b.chunks_exact_mut(rank)).zip(adapter.b.chunks_exact(rank)) {
            for (place, (to, value)) in to.iter_mut().zip(row).enumerate() {
                *to += x * inner[place];
                back[place] += x * value;
            }
        }
        for (to, x) in gradient.a.chunks_exact_mut(dim).zip(back) {
            to.iter_mut().zip(state).for_each(|(to, value)| *to += x * value);
        }
    }
    gradient
}

/// Gradients are summed in groups of this many questions, whoever computes them, so that the sum does not depend on the threads.
const GROUP: usize = 4;

fn mean_gradient(adapter: &Adapter, batch: &[&Example], schedule: &Schedule) -> Gradient {
    let groups: Vec<&[&Example]> = batch.chunks(GROUP).collect();
    let share = 1.0 / batch.len().max(1) as f32;
    let sums = in_parallel(&groups, schedule.threads, 1, |part| {
        let sum = |group: &&[&Example]| {
            let mut sum = Gradient::zero(adapter);
            group.iter().for_each(|example| sum.add(&gradient(adapter, example, schedule.temperature), share));
            sum
        };
        part.iter().map(sum).collect::<Vec<_>>()
    });
    let mut mean = Gradient::zero(adapter);
    sums.iter().flatten().for_each(|sum| mean.add(sum, 1.0));
    mean
}

fn mean_loss(adapter: &Adapter, examples: &[Example], schedule: &Schedule) -> f64 {
    let loss = |example: &Example| {
        let shares = example.shares();
        meet(&adapter.apply(&example.states), example, &shares, schedule.temperature).loss
    };
    let losses = in_parallel(examples, schedule.threads, 1, |part| part.iter().map(loss).collect::<Vec<f64>>());
    losses.iter().flatten().sum::<f64>() / examples.len().max(1) as f64
}

/// Fisher and Yates.
fn shuffle<T>(items: &mut [T], random: &mut impl RngCore) {
    for last in (1..items.len()).rev() {
        let other = (u128::from(random.next_u64()) * (last as u128 + 1)) >> 64;
        items.swap(last, other as usize);
    }
}

/// The moments of one matrix.
struct Adam {
    steps: i32,
    mean: Vec<f32>,
    square: Vec<f32>,
}

impl Adam {
    fn new(size: usize) -> Self {
        Self { steps: 0, mean: vec![0.0; size], square: vec![0.0; size] }
    }

    /// With the paper's β₁ = .9, β₂ = .999 and ε = 1e-8.
    fn step(&mut self, values: &mut [f32], gradient: &[f32], rate: f32) {
        self.steps += 1;
        let (first, second) = (1.0 - 0.9f32.powi(self.steps), 1.0 - 0.999f32.powi(self.steps));
        let moments = self.mean.iter_mut().zip(&mut self.square);
        for ((value, &slope), (mean, square)) in values.iter_mut().zip(gradient).zip(moments) {
            *mean = 0.9 * *mean + 0.1 * slope;
            *square = 0.999 * *square + 0.001 * slope * slope;
            *value -= rate * (*mean / first) / ((*square / second).sqrt() + 1e-8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::codes::Bits;
    use super::*;

    const SCHEDULE: Schedule =
        Schedule { temperature: 0.1, learning_rate: 0.01, batch: 4, epochs: 30, patience: 5, seed: 1, threads: 2 };

    fn codes(states: &[f32]) -> Arc<Codes> {
        let norm = |state: &[f32]| {
            let mut state = state.to_vec();
            super::super::kernel::normalise(&mut state);
            state
        };
        Arc::new(Codes::encode(&states.chunks(3).flat_map(norm).collect::<Vec<_>>(), 3, Bits::Eight))
    }

    fn example() -> Example {
        let candidates = vec![
            codes(&[1.0, 0.2, 0.0, 0.0, 0.3, 1.0]),
            codes(&[0.1, 1.0, 0.4]),
            codes(&[0.3, -0.2, 0.9, 0.9, 0.1, -0.4]),
        ];
        let states = vec![0.6, 0.0, 0.8, 0.0, 0.8, -0.6];
        Example { states, weights: vec![2.0, 1.0], candidates, relevant: vec![false, true, true] }
    }

    fn adapter() -> Adapter {
        let a = vec![0.3, -0.5, 0.2, 0.7, 0.1, -0.4];
        Adapter::new(3, 2, a, vec![0.2, 0.1, -0.3, 0.4, 0.05, -0.2]).unwrap()
    }

    /// Each derivative against the difference quotient.
    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let (example, adapter) = (example(), adapter());
        let loss = |adapter: &Adapter| mean_loss(adapter, std::slice::from_ref(&example), &SCHEDULE);
        let gradient = gradient(&adapter, &example, SCHEDULE.temperature);
        let h = 1e-2;
        for place in 0..6 {
            for (of_a, got) in [(true, gradient.a[place]), (false, gradient.b[place])] {
                let moved = |by: f32| {
                    let mut moved = adapter.clone();
                    let matrix = if of_a { &mut moved.a } else { &mut moved.b };
                    matrix[place] += by;
                    loss(&moved)
                };
                let slope = (moved(h) - moved(-h)) / f64::from(2.0 * h);
                assert!((slope - f64::from(got)).abs() < 0.02 * (1.0 + slope.abs()), "{place} {of_a}: {got} {slope}");
            }
        }
    }

    /// S by hand: the query is one token along x, τ = .1, candidates at cosines 1 and 0: L = −ln(e⁰ / (e¹⁰ + e⁰)).
    #[test]
    fn the_loss_by_hand() {
        let candidates = vec![codes(&[1.0, 0.0, 0.0]), codes(&[0.0, 1.0, 0.0])];
        let example =
            Example { states: vec![1.0, 0.0, 0.0], weights: vec![1.0], candidates, relevant: vec![false, true] };
        let loss = mean_loss(&Adapter::untrained(3, 1, 0), &[example], &SCHEDULE);
        assert!((loss - (1.0 + 10f64.exp()).ln()).abs() < 1e-3, "{loss}");
    }

    #[test]
    fn training_puts_the_answer_first_and_is_repeatable() {
        let examples = [example(), example()];
        let fit = |threads| {
            let schedule = Schedule { threads, ..SCHEDULE };
            let mut losses = Vec::new();
            let trained = train(Adapter::untrained(3, 2, 5), &examples, &examples, &schedule, |epoch| {
                losses.push(epoch.held_out);
                Ok::<_, ()>(())
            });
            (trained.unwrap(), losses)
        };
        let (trained, losses) = fit(1);
        assert!(losses.last() < losses.first(), "{losses:?}");
        assert_eq!(fit(3).0.adapter, trained.adapter);
        assert!(ndcg(Some(&trained.adapter), &examples, 10, 2) >= ndcg(None, &examples, 10, 2));
    }

    /// Three candidates at cosines 1, .8 and 0 of the one token; the second answers: 1 / log2(3).
    #[test]
    fn ndcg_by_hand() {
        let candidates = vec![codes(&[1.0, 0.0, 0.0]), codes(&[0.8, 0.6, 0.0]), codes(&[0.0, 1.0, 0.0])];
        let example = |relevant: Vec<bool>| Example {
            states: vec![1.0, 0.0, 0.0],
            weights: vec![1.0],
            candidates: candidates.clone(),
            relevant,
        };
        let examples = [example(vec![false, true, false]), example(vec![true, true, false])];
        assert_eq!(ndcg(None, &examples, 10, 1), [1.0 / 3f64.log2(), 1.0]);
        // beyond the depth nothing counts
        assert_eq!(ndcg(None, &examples, 1, 1), [0.0, 1.0]);
    }

    #[test]
    fn an_error_ends_the_training() {
        let stopped = train(adapter(), &[example()], &[example()], &SCHEDULE, |epoch| {
            if epoch.number == 2 { Err("enough") } else { Ok(()) }
        });
        assert_eq!(stopped.err(), Some("enough"));
    }
}
