//! The query adapter that comes with an encoder: a file next to its graph.

use std::fs;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::directory::broken;
use crate::error::Result;
use crate::rank::adapter::Adapter;

/// Its name in a model directory. It holds the tensors `a`, rank × dim, and `b`, dim × rank, of 32-bit floats.
pub const FILE: &str = "lethe_adapter.safetensors";

const WHAT: &str = "query adapter of the encoder";

/// Reads an adapter for states of `dim` values.
pub fn read(path: &Path, dim: usize) -> Result<Adapter> {
    let refused = |cause: String| broken(WHAT, path, &cause);
    let bytes = fs::read(path).map_err(|error| refused(error.to_string()))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| refused(error.to_string()))?;
    let matrix = |name: &str| -> Result<(Vec<usize>, Vec<f32>)> {
        let tensor = tensors.tensor(name).map_err(|error| refused(error.to_string()))?;
        Ok((
            tensor.shape().to_vec(),
            floats(&tensor).ok_or_else(|| refused(format!("{name} is not of 32-bit floats")))?,
        ))
    };
    let ((a_shape, a), (b_shape, b)) = (matrix("a")?, matrix("b")?);
    let rank = a_shape.first().copied().unwrap_or_default();
    if a_shape != [rank, dim] || b_shape != [dim, rank] {
        let wanted = format!("rank × {dim} and {dim} × rank are expected");
        return Err(refused(format!("a is {a_shape:?} and b is {b_shape:?}; {wanted}")));
    }
    Adapter::new(dim, rank, a, b).ok_or_else(|| refused("its rank is 0, or its numbers are not all finite".into()))
}

fn floats(tensor: &TensorView) -> Option<Vec<f32>> {
    let floats = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    (tensor.dtype() == Dtype::F32).then(|| floats.collect())
}
