//! What token evidence costs: one query of 12 wordpieces against pools of turns of 30, at 384 dimensions.
//!
//! `cargo bench --no-default-features` prints the time for each pool size and code width.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use lethe::rank::codes::{Bits, Codes, QueryCodes};
use lethe::rank::evidence::Evidence;
use lethe::rank::kernel::normalise;
use rand_xoshiro::Xoshiro256Plus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

const DIM: usize = 384;
const QUERY_TOKENS: usize = 12;
const TURN_TOKENS: usize = 30;

fn unit_states(random: &mut Xoshiro256Plus, tokens: usize) -> Vec<f32> {
    let mut states: Vec<f32> =
        (0..tokens * DIM).map(|_| (random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0).collect();
    states.chunks_exact_mut(DIM).for_each(normalise);
    states
}

fn evidence(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("evidence");
    group.sample_size(20);
    let mut random = Xoshiro256Plus::seed_from_u64(1);
    let query = unit_states(&mut random, QUERY_TOKENS);
    for (name, bits) in [("4 bits", Bits::Four), ("8 bits", Bits::Eight)] {
        for turns in [100, 600] {
            let pool: Vec<Codes> =
                (0..turns).map(|_| Codes::encode(&unit_states(&mut random, TURN_TOKENS), DIM, bits)).collect();
            group.bench_with_input(BenchmarkId::new(name, turns), &pool, |bencher, pool| {
                let query = QueryCodes::encode(&query, DIM);
                bencher.iter(|| Evidence::gather(&query, pool, 64).scores(&[1.0; QUERY_TOKENS], false));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, evidence);
criterion_main!(benches);
