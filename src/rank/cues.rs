//! Cue clusters: kinds of question, found by k-means over the queries that were asked.

use std::collections::BTreeSet;

use linfa::DatasetBase;
use linfa::traits::Fit;
use linfa_clustering::KMeans;
use ndarray::Array2;
use rand_xoshiro::Xoshiro256Plus;
use rand_xoshiro::rand_core::SeedableRng;

use super::kernel::{dot, normalise};
use super::order::Scored;

/// Restarts of k-means and iterations of each; the best run is kept.
const RUNS: usize = 3;
const ITERATIONS: u64 = 100;

/// The cluster a query belongs to: c(q) = argmax_k ⟨q, c_k⟩ (the lethe paper), the lower number on a tie.
///
/// `None` when there are no clusters.
pub fn assign<'a>(query: &[f32], centroids: impl IntoIterator<Item = &'a [f32]>) -> Option<usize> {
    let scored = |(id, centroid): (usize, &[f32])| Scored { id, score: f64::from(dot(query, centroid)) };
    centroids.into_iter().enumerate().map(scored).min_by(Scored::best_first).map(|s| s.id)
}

/// Fits `clusters` unit centroids to `queries`, unit rows of `dim` values; fewer when fewer of them attract any query.
///
/// Euclidean k-means, started by k-means++ from `seed`: on unit vectors the nearest centroid is the most similar one. The
/// same input gives the same centroids. An error is k-means' own, in words.
pub fn fit(queries: &[f32], dim: usize, clusters: usize, seed: u64) -> Result<Vec<Vec<f32>>, String> {
    let rows = queries.len() / dim.max(1);
    let clusters = clusters.min(rows);
    if clusters == 0 {
        return Ok(Vec::new());
    }
    let points = Array2::from_shape_vec((rows, dim), queries.iter().map(|&x| f64::from(x)).collect())
        .map_err(|error| error.to_string())?;
    let model = KMeans::params_with_rng(clusters, Xoshiro256Plus::seed_from_u64(seed))
        .n_runs(RUNS)
        .max_n_iterations(ITERATIONS)
        .fit(&DatasetBase::from(points))
        .map_err(|error| error.to_string())?;
    let unit = |row: ndarray::ArrayView1<f64>| {
        let mut centroid: Vec<f32> = row.iter().map(|&x| x as f32).collect();
        normalise(&mut centroid);
        centroid
    };
    let mut centroids: Vec<Vec<f32>> = model.centroids().rows().into_iter().map(unit).collect();
    let chosen: BTreeSet<usize> =
        queries.chunks_exact(dim).filter_map(|query| assign(query, centroids.iter().map(Vec::as_slice))).collect();
    let mut number = 0..;
    centroids.retain(|_| number.next().is_some_and(|number| chosen.contains(&number)));
    Ok(centroids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_goes_to_the_most_similar_centroid() {
        let centroids: [&[f32]; 3] = [&[1.0, 0.0], &[0.0, 1.0], &[0.0, 1.0]];
        assert_eq!(assign(&[0.6, 0.8], centroids), Some(1));
        assert_eq!(assign(&[0.8, 0.6], centroids), Some(0));
        assert_eq!(assign(&[1.0, 0.0], []), None);
    }

    #[test]
    fn three_bundles_of_queries_give_three_cues() {
        let angles = [0.0f32, 0.05, 0.1, 2.0, 2.05, 2.1, 4.0, 4.05, 4.1];
        let queries: Vec<f32> = angles.iter().flat_map(|a| [a.cos(), a.sin()]).collect();
        let centroids = fit(&queries, 2, 3, 7).unwrap();
        let refs = || centroids.iter().map(Vec::as_slice);
        let groups: Vec<_> = queries.chunks(2).map(|q| assign(q, refs()).unwrap()).collect();
        for bundle in groups.chunks(3) {
            assert!(bundle.iter().all(|g| *g == bundle[0]), "{groups:?}");
        }
        assert!(groups[0] != groups[3] && groups[3] != groups[6] && groups[0] != groups[6]);
        // the centroid of a bundle is its middle angle
        let middle = &centroids[groups[0]];
        assert!((middle[0] - 0.05f32.cos()).abs() < 1e-4 && (middle[1] - 0.05f32.sin()).abs() < 1e-4);
        assert_eq!(fit(&queries, 2, 3, 7).unwrap(), centroids);
    }

    #[test]
    fn never_more_clusters_than_queries() {
        assert_eq!(fit(&[1.0, 0.0], 2, 30, 1).unwrap().len(), 1);
        // the same question four times is one kind of question
        assert_eq!(fit(&[0.6, 0.8].repeat(4), 2, 3, 1).unwrap().len(), 1);
        assert!(fit(&[], 2, 30, 1).unwrap().is_empty());
    }
}
