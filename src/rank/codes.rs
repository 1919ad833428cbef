//! States as small integers: 8 or 4 bits a value and one scale a state.
//!
//! A state x becomes round(x / s) with s = max|x| / (2^(bits−1) − 1), kept per state, so a code is always in range and
//! the largest value of every state is exact up to rounding of the scale.

use super::kernel;

/// Bits for one value of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    Four,
    Eight,
}

impl Bits {
    /// `None` for anything but 4 and 8.
    pub fn new(bits: i64) -> Option<Self> {
        match bits {
            4 => Some(Self::Four),
            8 => Some(Self::Eight),
            _ => None,
        }
    }

    pub fn count(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// Bytes for one state of `dim` values: two 4-bit values share a byte, the even one in the low half.
    pub fn bytes(self, dim: usize) -> usize {
        (dim * self.count()).div_ceil(8)
    }

    fn largest(self) -> f32 {
        match self {
            Self::Four => 7.0,
            Self::Eight => 127.0,
        }
    }
}

/// States, row by row, as codes: the tokens of one memory, or the whole-turn vectors of many.
#[derive(Clone, Debug, PartialEq)]
pub struct Codes {
    bits: Bits,
    dim: usize,
    codes: Vec<u8>,
    scales: Vec<f32>,
}

impl Codes {
    /// Codes `states`, rows of `dim` values each.
    pub fn encode(states: &[f32], dim: usize, bits: Bits) -> Self {
        let mut coded = Self { bits, dim, codes: Vec::new(), scales: Vec::new() };
        coded.codes.reserve(states.len() / dim.max(1) * bits.bytes(dim));
        states.chunks_exact(dim.max(1)).for_each(|state| coded.push(state));
        coded
    }

    /// Codes one more state of `dim` values.
    pub fn push(&mut self, state: &[f32]) {
        let scale = state.iter().fold(0f32, |max, x| max.max(x.abs())) / self.bits.largest();
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let code = |x: f32| (x * inverse).round() as i8;
        match self.bits {
            Bits::Eight => self.codes.extend(state.iter().map(|&x| code(x) as u8)),
            Bits::Four => self.codes.extend(state.chunks(2).map(|pair| {
                let high = pair.get(1).map_or(0, |&x| code(x));
                (code(pair[0]) as u8 & 0x0f) | ((high as u8) << 4)
            })),
        }
        self.scales.push(scale);
    }

    /// Takes codes and little-endian scales as they were stored. `None` when the lengths do not fit each other.
    pub fn from_bytes(codes: Vec<u8>, scales: &[u8], dim: usize, bits: Bits) -> Option<Self> {
        let scales: Vec<f32> = scales
            .len()
            .is_multiple_of(4)
            .then(|| scales.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())?;
        let fits = codes.len() == scales.len() * bits.bytes(dim) && scales.iter().all(|s| s.is_finite() && *s >= 0.0);
        fits.then_some(Self { bits, dim, codes, scales })
    }

    /// Adds a row of other codes of the same width and shape.
    pub fn copy_row(&mut self, from: &Self, row: usize) {
        let width = self.bits.bytes(self.dim);
        self.codes.extend_from_slice(&from.codes[row * width..(row + 1) * width]);
        self.scales.push(from.scales[row]);
    }

    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The scales as they are stored: four little-endian bytes a row.
    pub fn scale_bytes(&self) -> Vec<u8> {
        self.scales.iter().flat_map(|s| s.to_le_bytes()).collect()
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.scales.len()
    }

    pub fn is_empty(&self) -> bool {
        self.scales.is_empty()
    }

    /// Adds `factor` times the state of a row to `sum`, `dim` values.
    pub fn add_row(&self, row: usize, factor: f32, sum: &mut [f32]) {
        let width = self.bits.bytes(self.dim);
        let (codes, factor) = (&self.codes[row * width..(row + 1) * width], factor * self.scales[row]);
        match self.bits {
            Bits::Eight => {
                sum.iter_mut().zip(codes).for_each(|(sum, &code)| *sum += factor * f32::from(code as i8));
            }
            Bits::Four => {
                for (sum, &code) in sum.chunks_mut(2).zip(codes) {
                    // The halves with their signs: shifted up to the top of the byte, and down again.
                    let halves = [(code << 4) as i8 >> 4, code as i8 >> 4];
                    sum.iter_mut().zip(halves).for_each(|(sum, half)| *sum += factor * f32::from(half));
                }
            }
        }
    }

    /// Writes the codes of every row into `values`, `dim` integers a row. Times its scale, a row is the state it codes.
    pub fn unpack(&self, values: &mut Vec<i16>) {
        match self.bits {
            Bits::Eight => {
                values.clear();
                values.extend(self.codes.iter().map(|&code| i16::from(code as i8)));
            }
            Bits::Four => {
                values.resize(2 * self.codes.len(), 0);
                kernel::unpack_halves(&self.codes, values);
                if self.dim % 2 == 1 {
                    // The last byte of an odd row has an empty half.
                    let mut place = 0;
                    values.retain(|_| {
                        place += 1;
                        place % (self.dim + 1) != 0
                    });
                }
            }
        }
    }
}

/// Query states as integers of 15 bits, to be met with [`Codes`].
pub struct QueryCodes {
    dim: usize,
    values: Vec<i16>,
    scales: Vec<f32>,
}

impl QueryCodes {
    /// Codes `states`, rows of `dim` values each.
    pub fn encode(states: &[f32], dim: usize) -> Self {
        let mut coded = Self { dim, values: Vec::with_capacity(states.len()), scales: Vec::new() };
        let largest = f32::from(kernel::largest(dim));
        for state in states.chunks_exact(dim.max(1)) {
            let scale = state.iter().fold(0f32, |max, x| max.max(x.abs())) / largest;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            coded.values.extend(state.iter().map(|x| (x * inverse).round() as i16));
            coded.scales.push(scale);
        }
        coded
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.scales.len()
    }

    pub fn is_empty(&self) -> bool {
        self.scales.is_empty()
    }

    /// The inner product of the first query state with each row of 8-bit codes.
    pub fn scan(&self, rows: &Codes) -> Vec<f32> {
        let Some(scale) = self.scales.first() else { return vec![0.0; rows.len()] };
        let mut products = vec![0; rows.len()];
        kernel::scan(&self.values[..self.dim], &rows.codes, &mut products);
        products.iter().zip(&rows.scales).map(|(&product, row)| product as f32 * row * scale).collect()
    }

    /// The inner product of the first query state with one row of 8-bit codes.
    pub fn meet(&self, rows: &Codes, row: usize) -> f32 {
        let Some(scale) = self.scales.first() else { return 0.0 };
        let mut product = [0];
        kernel::scan(&self.values[..self.dim], &rows.codes[row * self.dim..(row + 1) * self.dim], &mut product);
        product[0] as f32 * rows.scales[row] * scale
    }

    /// Passes the similarity of every state of `memory` with every query state: its number, and the similarity.
    ///
    /// `space` is working memory that is kept between calls.
    pub fn interact(&self, memory: &Codes, space: &mut Space, mut each: impl FnMut(usize, f32)) {
        if self.is_empty() {
            return;
        }
        memory.unpack(&mut space.values);
        space.products.resize(memory.len() * self.len(), 0);
        kernel::interact(&self.values, &space.values, self.dim, &mut space.products);
        for (products, memory_scale) in space.products.chunks_exact(self.len()).zip(&memory.scales) {
            for (token, (&product, query_scale)) in products.iter().zip(&self.scales).enumerate() {
                each(token, product as f32 * memory_scale * query_scale);
            }
        }
    }
}

/// Working memory of [`QueryCodes::interact`].
#[derive(Default)]
pub struct Space {
    values: Vec<i16>,
    products: Vec<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(coded: &Codes, row: usize) -> Vec<f32> {
        let mut values = Vec::new();
        coded.unpack(&mut values);
        values.chunks(coded.dim).nth(row).unwrap().iter().map(|&x| f32::from(x) * coded.scales[row]).collect()
    }

    fn plain(a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(x, y)| x * y).sum()
    }

    #[test]
    fn four_bits_by_hand() {
        // scale .7 / 7 = .1; codes 7, −3, 0 and, in the odd last place, 2 (from .16 / .1 = 1.6)
        let coded = Codes::encode(&[0.7, -0.3, 0.0, 0.16, 0.7], 5, Bits::Four);
        assert_eq!(coded.codes(), [0x07 | 0xd0, 0x20, 0x07]);
        for (got, want) in decoded(&coded, 0).iter().zip([0.7, -0.3, 0.0, 0.2, 0.7]) {
            assert!((got - want).abs() < 1e-6);
        }
    }

    #[test]
    fn a_zero_state_stays_zero() {
        for bits in [Bits::Four, Bits::Eight] {
            assert_eq!(decoded(&Codes::encode(&[0.0; 4], 4, bits), 0), [0.0; 4]);
        }
    }

    #[test]
    fn stored_bytes_of_another_shape_are_refused() {
        let coded = Codes::encode(&[0.5; 8], 4, Bits::Eight);
        let (codes, scales) = (coded.codes().to_vec(), coded.scale_bytes());
        assert_eq!(Codes::from_bytes(codes.clone(), &scales, 4, Bits::Eight), Some(coded));
        assert_eq!(Codes::from_bytes(codes.clone(), &scales[1..], 4, Bits::Eight), None);
        assert_eq!(Codes::from_bytes(codes.clone(), &scales, 4, Bits::Four), None);
        assert_eq!(Codes::from_bytes(codes, &[0xff; 8], 4, Bits::Eight), None);
    }

    proptest! {
        #[test]
        fn a_row_is_added_as_it_is_decoded(four in any::<bool>(), dim in 1usize..9, states in prop::collection::vec(-1f32..1.0, 24)) {
            let coded = Codes::encode(&states[..dim * 2], dim, if four { Bits::Four } else { Bits::Eight });
            let mut sum = vec![1f32; dim];
            coded.add_row(1, -2.0, &mut sum);
            for (got, state) in sum.iter().zip(decoded(&coded, 1)) {
                prop_assert!((got - (1.0 - 2.0 * state)).abs() < 1e-5);
            }
        }

        #[test]
        fn no_value_moves_by_more_than_half_a_step(state in prop::collection::vec(-1f32..1.0, 1..20), four in any::<bool>()) {
            let bits = if four { Bits::Four } else { Bits::Eight };
            let coded = Codes::encode(&state, state.len(), bits);
            let step = state.iter().fold(0f32, |m, x| m.max(x.abs())) / bits.largest();
            for (got, want) in decoded(&coded, 0).iter().zip(&state) {
                prop_assert!((got - want).abs() <= step * 0.5001, "{} {} {}", got, want, step);
            }
        }

        /// Against f32 over the decoded states: what is left is the query's rounding, half of 1/32767 a value.
        #[test]
        fn integers_meet_as_the_states_they_code(four in any::<bool>(), dim in 1usize..40, states in prop::collection::vec(-1f32..1.0, 40 * 5)) {
            let bits = if four { Bits::Four } else { Bits::Eight };
            let (query, memory) = (&states[..dim * 2], &states[dim * 2..dim * 5]);
            let coded = Codes::encode(memory, dim, bits);
            let query_codes = QueryCodes::encode(query, dim);
            let mut met = Vec::new();
            query_codes.interact(&coded, &mut Space::default(), |token, similarity| met.push((token, similarity)));
            prop_assert_eq!(met.len(), 6);
            for (place, &(token, similarity)) in met.iter().enumerate() {
                let expected = plain(&query[token * dim..(token + 1) * dim], &decoded(&coded, place / 2));
                prop_assert!((similarity - expected).abs() <= dim as f32 * 2e-5, "{} {}", similarity, expected);
            }
            if !four {
                let scanned = query_codes.scan(&coded);
                prop_assert_eq!(&scanned, &met.iter().filter(|(token, _)| *token == 0).map(|m| m.1).collect::<Vec<_>>());
                prop_assert_eq!(query_codes.meet(&coded, 2), scanned[2]);
            }
        }

        #[test]
        fn copied_rows_are_the_rows(four in any::<bool>(), states in prop::collection::vec(-1f32..1.0, 15)) {
            let bits = if four { Bits::Four } else { Bits::Eight };
            let whole = Codes::encode(&states, 5, bits);
            let mut copied = Codes::encode(&[], 5, bits);
            [2, 0, 1].into_iter().for_each(|row| copied.copy_row(&whole, row));
            prop_assert_eq!(copied, Codes::encode(&[&states[10..], &states[..10]].concat(), 5, bits));
        }
    }
}
