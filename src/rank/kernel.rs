//! Inner products, for AVX2 and for any processor; which is chosen when they are first called.
//!
//! Products of 16-bit integers are added in 32 bits. Nothing overflows: a code is at most 128 in magnitude, and a query value at
//! most what [`largest`] leaves room for.

use multiversion::multiversion;
use multiversion::target::match_target;

/// The largest magnitude a query value of `dim` dimensions is rounded to, as an integer: 15 bits up to 512 dimensions, an error
/// of 2·10⁻⁶ on a cosine.
pub fn largest(dim: usize) -> i16 {
    let room = i32::MAX / i32::try_from(dim.max(1)).unwrap_or(i32::MAX).saturating_mul(128);
    i16::try_from(room).unwrap_or(i16::MAX)
}

/// ⟨a, b⟩ in eight running sums, which the compiler turns into vector instructions.
#[multiversion(targets("x86_64+avx2+fma"))]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut sums = [0f32; LANES];
    let (a_lanes, b_lanes) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a_lanes.remainder().iter().zip(b_lanes.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a_lanes.zip(b_lanes) {
        for lane in 0..LANES {
            sums[lane] += x[lane] * y[lane];
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Scales `x` to length one, in place. A zero vector stays zero.
pub fn normalise(x: &mut [f32]) {
    let norm = dot(x, x).sqrt();
    if norm > 0.0 {
        x.iter_mut().for_each(|v| *v /= norm);
    }
}

/// The inner product of one query state with each row of 8-bit codes; `products` has one place a row.
#[multiversion(targets("x86_64+avx2"))]
pub fn scan(query: &[i16], rows: &[u8], products: &mut [i32]) {
    for (product, row) in products.iter_mut().zip(rows.chunks_exact(query.len().max(1))) {
        [*product] = match_target! {
            "x86_64+avx2" => avx2::inner_bytes(query, row),
            _ => [query.iter().zip(row).map(|(&x, &y)| i32::from(x) * i32::from(y as i8)).sum()],
        };
    }
}

/// Query states that are met with a memory state at a time: it is read from the cache once for all of them.
const BLOCK: usize = 4;

/// The inner product of every memory state with every query state: row by row of `memory`, one place a row of `query`.
#[multiversion(targets("x86_64+avx2"))]
pub fn interact(query: &[i16], memory: &[i16], dim: usize, products: &mut [i32]) {
    let states = query.len() / dim;
    for (products, y) in products.chunks_exact_mut(states.max(1)).zip(memory.chunks_exact(dim)) {
        let mut blocks = products.chunks_exact_mut(BLOCK);
        let mut queries = query.chunks_exact(BLOCK * dim);
        for (products, xs) in blocks.by_ref().zip(queries.by_ref()) {
            products.copy_from_slice(&match_target! {
                "x86_64+avx2" => avx2::inner_block(xs, y),
                _ => portable::<BLOCK>(xs, y),
            });
        }
        for (product, x) in blocks.into_remainder().iter_mut().zip(queries.remainder().chunks_exact(dim)) {
            [*product] = match_target! {
                "x86_64+avx2" => avx2::inner(x, y),
                _ => portable::<1>(x, y),
            };
        }
    }
}

/// The inner product of each of N rows of `xs` with `y`.
fn portable<const N: usize>(xs: &[i16], y: &[i16]) -> [i32; N] {
    let mut products = [0; N];
    for (product, x) in products.iter_mut().zip(xs.chunks_exact(y.len())) {
        *product = plain(x, y);
    }
    products
}

fn plain(x: &[i16], y: &[i16]) -> i32 {
    x.iter().zip(y).map(|(&x, &y)| i32::from(x) * i32::from(y)).sum()
}

/// Two 4-bit codes a byte, the even one in the low half, as integers.
#[multiversion(targets("x86_64+avx2"))]
pub fn unpack_halves(codes: &[u8], values: &mut [i16]) {
    for (values, &code) in values.chunks_exact_mut(2).zip(codes) {
        values[0] = (i16::from(code) << 12) >> 12;
        values[1] = (i16::from(code) << 8) >> 12;
    }
}

/// The same by instructions that multiply sixteen pairs and add them two by two, which the compiler does not find by itself.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m128i, __m256i, _mm256_add_epi32, _mm256_cvtepi8_epi16, _mm256_madd_epi16, _mm256_setzero_si256,
    };

    use bytemuck::must_cast;

    use super::{BLOCK, plain};

    const LANES: usize = 16;

    /// The inner product of each of four rows of `xs` with `y`.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn inner_block(xs: &[i16], y: &[i16]) -> [i32; BLOCK] {
        let (ab, cd) = xs.split_at(2 * y.len());
        let ((a, b), (c, d)) = (ab.split_at(y.len()), cd.split_at(y.len()));
        let ((ys, _), (a_wide, _), (b_wide, _)) = (y.as_chunks::<LANES>(), a.as_chunks(), b.as_chunks());
        let ((c_wide, _), (d_wide, _)) = (c.as_chunks::<LANES>(), d.as_chunks::<LANES>());
        let [mut a_sum, mut b_sum, mut c_sum, mut d_sum] = [_mm256_setzero_si256(); BLOCK];
        for ((((y, a), b), c), d) in ys.iter().zip(a_wide).zip(b_wide).zip(c_wide).zip(d_wide) {
            let y: __m256i = must_cast(*y);
            a_sum = _mm256_add_epi32(a_sum, _mm256_madd_epi16(must_cast::<[i16; LANES], __m256i>(*a), y));
            b_sum = _mm256_add_epi32(b_sum, _mm256_madd_epi16(must_cast::<[i16; LANES], __m256i>(*b), y));
            c_sum = _mm256_add_epi32(c_sum, _mm256_madd_epi16(must_cast(*c), y));
            d_sum = _mm256_add_epi32(d_sum, _mm256_madd_epi16(must_cast(*d), y));
        }
        let done = ys.len() * LANES;
        let rest = |x: &[i16]| plain(&x[done..], &y[done..]);
        [total(a_sum) + rest(a), total(b_sum) + rest(b), total(c_sum) + rest(c), total(d_sum) + rest(d)]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn inner(x: &[i16], y: &[i16]) -> [i32; 1] {
        let ((xs, x_rest), (ys, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
        let mut sum = _mm256_setzero_si256();
        for (x, y) in xs.iter().zip(ys) {
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(must_cast(*x), must_cast(*y)));
        }
        [total(sum) + plain(x_rest, y_rest)]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn inner_bytes(x: &[i16], y: &[u8]) -> [i32; 1] {
        let ((xs, x_rest), (ys, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
        let mut sum = _mm256_setzero_si256();
        for (x, y) in xs.iter().zip(ys) {
            let y = _mm256_cvtepi8_epi16(must_cast::<[u8; LANES], __m128i>(*y));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(must_cast(*x), y));
        }
        let rest: i32 = x_rest.iter().zip(y_rest).map(|(&x, &y)| i32::from(x) * i32::from(y as i8)).sum();
        [total(sum) + rest]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn total(sum: __m256i) -> i32 {
        must_cast::<__m256i, [i32; 8]>(sum).iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rows of `dim` values, one and then several, of any length that does not fill whole vector registers.
    fn rows(largest: i16) -> impl Strategy<Value = (usize, Vec<i16>, Vec<i16>)> {
        (1usize..70, 1usize..11, 1usize..5).prop_flat_map(move |(dim, a, b)| {
            let values = |count, largest: i16| prop::collection::vec(-largest..=largest, count);
            (Just(dim), values(dim * a, super::largest(dim)), values(dim * b, largest))
        })
    }

    proptest! {
        #[test]
        fn dot_is_the_sum_of_products(pairs in prop::collection::vec((-1f32..1.0, -1f32..1.0), 0..50)) {
            let (a, b): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            let plain: f64 = a.iter().zip(&b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
            prop_assert!((f64::from(dot(&a, &b)) - plain).abs() < 1e-4);
        }

        #[test]
        fn every_pair_is_met_once((dim, query, memory) in rows(127)) {
            let mut products = vec![0; query.len() / dim * (memory.len() / dim)];
            interact(&query, &memory, dim, &mut products);
            let expected: Vec<i32> =
                memory.chunks(dim).flat_map(|y| query.chunks(dim).map(|x| plain(x, y))).collect();
            prop_assert_eq!(products, expected);
        }

        #[test]
        fn a_scan_is_a_product_a_row((dim, query, memory) in rows(127)) {
            let bytes: Vec<u8> = memory.iter().map(|&y| y as i8 as u8).collect();
            let mut products = vec![0; memory.len() / dim];
            scan(&query[..dim], &bytes, &mut products);
            let expected: Vec<i32> = memory.chunks(dim).map(|y| plain(&query[..dim], y)).collect();
            prop_assert_eq!(products, expected);
        }
    }

    #[test]
    fn the_largest_values_do_not_overflow() {
        for dim in [1, 384, 512, 513, 8000] {
            let (query, memory) = (vec![largest(dim); dim], vec![-128; dim]);
            let mut products = [0];
            interact(&query, &memory, dim, &mut products);
            assert_eq!(i64::from(products[0]), -128 * i64::from(largest(dim)) * dim as i64);
        }
        assert_eq!((largest(384), largest(1024)), (i16::MAX, 16383));
    }
}
