//! Words, by tantivy: an inverted index in memory, scored with BM25.

use std::collections::HashMap;
use std::path::Path;

use tantivy::directory::{Directory, RamDirectory};
use tantivy::fastfield::AliveBitSet;
use tantivy::indexer::merge_filtered_segments;
use tantivy::postings::Postings;
use tantivy::query::{Bm25StatisticsProvider, Bm25Weight, BooleanQuery, EnableScoring, Occur, Query, TermQuery};
use tantivy::schema::{Field, IndexRecordOption, Schema, TextFieldIndexing, TextOptions};
use tantivy::tokenizer::TokenizerManager;
use tantivy::{DocId, DocSet, Index, IndexBuilder, IndexSettings, Searcher, TantivyDocument, TantivyError, Term};
use tantivy_common::{BitSet, OwnedBytes, ReadOnlyBitSet};

use crate::error::{Error, Result};
use crate::rank::order::{Highest, Scored};

/// What tantivy sizes its table of terms by. It grows beyond it as it must.
const WRITER_BYTES: usize = 15_000_000;

const TOKENIZER: &str = "default";

/// The words of some texts, each known by its number. Immutable.
pub struct Words {
    files: RamDirectory,
    index: Index,
    searcher: Searcher,
}

/// The one field there is.
fn schema() -> (Schema, Field) {
    let mut schema = Schema::builder();
    let indexing = TextFieldIndexing::default().set_index_option(IndexRecordOption::WithFreqs).set_tokenizer(TOKENIZER);
    let text = schema.add_text_field("text", TextOptions::default().set_indexing_options(indexing));
    (schema.build(), text)
}

impl Words {
    /// Indexes texts; the first has number 0.
    pub fn build<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let (schema, text) = schema();
        let files = RamDirectory::create();
        // One writer, one segment: a document's number is its place.
        let mut writer = IndexBuilder::new().schema(schema).single_segment_index_writer(files.clone(), WRITER_BYTES)?;
        for content in texts {
            let mut document = TantivyDocument::new();
            document.add_text(text, content);
            writer.add_document(document)?;
        }
        Self::open(files, writer.finalize()?)
    }

    /// The texts of several indexes that `kept` says, in order. An error when none is left.
    pub fn merge(parts: &[(&Self, &[bool])]) -> Result<Self> {
        let (mut segments, mut alive) = (Vec::new(), Vec::new());
        for (words, kept) in parts {
            segments.extend(words.index.searchable_segments()?);
            alive.push(Some(bits(kept)?));
        }
        let files = RamDirectory::create();
        let index = merge_filtered_segments(&segments, IndexSettings::default(), alive, files.clone())?;
        Self::open(files, index)
    }

    fn open(files: RamDirectory, index: Index) -> Result<Self> {
        let searcher = index.reader()?.searcher();
        if searcher.segment_readers().len() != 1 {
            return Err(Error::Internal(format!("{} word segments, not one", searcher.segment_readers().len())));
        }
        Ok(Self { files, index, searcher })
    }

    /// How many texts.
    pub fn texts(&self) -> usize {
        self.searcher.num_docs() as usize
    }

    /// What [`Words::from_files`] takes.
    pub fn to_files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let mut files = Vec::new();
        for path in self.index.directory().list_managed_files() {
            let slice = self.files.open_read(&path).map_err(TantivyError::from)?;
            let bytes = slice.read_bytes().map_err(TantivyError::from)?;
            files.push((path.to_string_lossy().into_owned(), bytes.to_vec()));
        }
        files.sort();
        Ok(files)
    }

    pub fn from_files(saved: &[(String, Vec<u8>)]) -> Result<Self> {
        let files = RamDirectory::create();
        for (path, bytes) in saved {
            files.atomic_write(Path::new(path), bytes).map_err(TantivyError::from)?;
        }
        let index = Index::open(files.clone())?;
        Self::open(files, index)
    }

    /// The texts among `docs`, in ascending order, with their BM25 scores. Those without a word of the query have 0.
    fn scores(&self, query: &WordQuery, docs: &[DocId]) -> Result<Vec<f64>> {
        let reader = self.searcher.segment_reader(0);
        let (inverted, lengths) = (reader.inverted_index(query.text)?, reader.get_fieldnorms_reader(query.text)?);
        let mut scores = vec![0.0; docs.len()];
        for (term, weight) in &query.terms {
            let postings = inverted.read_postings(term, IndexRecordOption::WithFreqs).map_err(TantivyError::from)?;
            let Some(mut postings) = postings else { continue };
            for (score, &doc) in scores.iter_mut().zip(docs) {
                if postings.doc() > doc {
                    continue;
                }
                if postings.seek(doc) == doc {
                    *score += f64::from(weight.score(lengths.fieldnorm_id(doc), postings.term_freq()));
                }
            }
        }
        Ok(scores)
    }

    /// The texts that can be among the best, where `highest` has the best scores that were met before.
    fn prune(&self, query: &WordQuery, allowed: Option<&[bool]>, highest: &mut Highest) -> Result<Vec<DocId>> {
        let mut docs = Vec::new();
        let any = query.any();
        let weight = any.weight(EnableScoring::enabled_from_statistics_provider(&query.statistics, &self.searcher))?;
        weight.for_each_pruning(
            highest.threshold().next_down(),
            self.searcher.segment_reader(0),
            &mut |doc, score| {
                if allowed.is_none_or(|allowed| allowed.get(doc as usize).is_some_and(|&allows| allows)) {
                    docs.push(doc);
                    highest.offer(score);
                }
                // Texts that score as the last of the best are met too, so that which of them stays does not depend on their order.
                highest.threshold().next_down()
            },
        )?;
        Ok(docs)
    }
}

fn bits(kept: &[bool]) -> Result<AliveBitSet> {
    let mut bits = BitSet::with_max_value(u32::try_from(kept.len()).unwrap_or(u32::MAX));
    (0u32..).zip(kept).filter(|(_, kept)| **kept).for_each(|(doc, _)| {
        bits.insert(doc);
    });
    let mut bytes = Vec::new();
    bits.serialize(&mut bytes).map_err(TantivyError::from)?;
    Ok(AliveBitSet::from(ReadOnlyBitSet::open(OwnedBytes::new(bytes))))
}

/// A query, with the weight of each of its words over all the indexes it is asked of, so that their scores can be compared.
pub struct WordQuery {
    text: Field,
    terms: Vec<(Term, Bm25Weight)>,
    statistics: Statistics,
}

#[derive(Default)]
struct Statistics {
    texts: u64,
    tokens: u64,
    containing: HashMap<Term, u64>,
}

impl WordQuery {
    pub fn new<'a>(query: &str, indexes: impl IntoIterator<Item = &'a Words>) -> Result<Self> {
        let (_, text) = schema();
        let mut statistics = Statistics::default();
        let mut distinct: Vec<Term> = Vec::new();
        let analyzer = TokenizerManager::default().get(TOKENIZER);
        let mut analyzer = analyzer.ok_or_else(|| Error::Internal(format!("no tokenizer '{TOKENIZER}'")))?;
        let mut stream = analyzer.token_stream(query);
        while stream.advance() {
            let term = Term::from_field_text(text, &stream.token().text);
            if !distinct.contains(&term) {
                distinct.push(term);
            }
        }
        for words in indexes {
            let inverted = words.searcher.segment_reader(0).inverted_index(text)?;
            statistics.texts += words.searcher.num_docs();
            statistics.tokens += inverted.total_num_tokens();
            for term in &distinct {
                let containing = inverted.doc_freq(term).map_err(TantivyError::from)?;
                *statistics.containing.entry(term.clone()).or_default() += u64::from(containing);
            }
        }
        distinct.retain(|term| statistics.containing.get(term).is_some_and(|&containing| containing > 0));
        let weighted = |term: Term| {
            let weight = Bm25Weight::for_terms(&statistics, std::slice::from_ref(&term))?;
            Ok((term, weight))
        };
        let terms = distinct.into_iter().map(weighted).collect::<Result<_>>()?;
        Ok(Self { text, terms, statistics })
    }

    fn any(&self) -> BooleanQuery {
        let of_term = |(term, _): &(Term, Bm25Weight)| -> (Occur, Box<dyn Query>) {
            (Occur::Should, Box::new(TermQuery::new(term.clone(), IndexRecordOption::WithFreqs)))
        };
        BooleanQuery::new(self.terms.iter().map(of_term).collect())
    }
}

impl Bm25StatisticsProvider for Statistics {
    fn total_num_tokens(&self, _: Field) -> tantivy::Result<u64> {
        Ok(self.tokens)
    }

    fn total_num_docs(&self) -> tantivy::Result<u64> {
        Ok(self.texts)
    }

    fn doc_freq(&self, term: &Term) -> tantivy::Result<u64> {
        Ok(self.containing.get(term).copied().unwrap_or(0))
    }
}

/// Below this share of allowed texts they are looked up one by one; above it, the lists of the words are walked.
const FEW: usize = 16;

/// The best `n` texts by BM25 (k₁ = 1.2, b = .75) of several indexes, and those that tie with the last; each index with the texts
/// that are allowed there, `None` for all. For each index its texts with their scores, in no particular order.
///
/// tantivy leaves out blocks of texts that cannot be among the best by a bound that it computes over an index's own average
/// length, so where the indexes differ in it the very last of the `n` may be another that scores almost the same.
pub fn search(indexes: &[(&Words, Option<&[bool]>)], query: &WordQuery, n: usize) -> Result<Vec<Vec<Scored<u32>>>> {
    let mut found = Vec::with_capacity(indexes.len());
    if query.terms.is_empty() || n == 0 {
        found.resize_with(indexes.len(), Vec::new);
        return Ok(found);
    }
    let mut highest = Highest::new(n);
    for (words, allowed) in indexes {
        let few = allowed.filter(|allowed| allowed.iter().filter(|allows| **allows).count() * FEW < allowed.len());
        let docs = match few {
            Some(allowed) => (0u32..).zip(allowed).filter(|(_, allows)| **allows).map(|(doc, _)| doc).collect(),
            None => words.prune(query, *allowed, &mut highest)?,
        };
        let scores = words.scores(query, &docs)?;
        let hits = docs.into_iter().zip(scores).filter(|(_, score)| *score > 0.0);
        found.push(hits.map(|(id, score)| Scored { id, score }).collect::<Vec<_>>());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn build(texts: &[&str]) -> Words {
        Words::build(texts.iter().copied()).unwrap()
    }

    /// The best `n` of each index, by their scores and then their numbers.
    fn best(indexes: &[(&Words, Option<&[bool]>)], query: &str, n: usize) -> Vec<Vec<Scored<u32>>> {
        let query = WordQuery::new(query, indexes.iter().map(|(words, _)| *words)).unwrap();
        let found = search(indexes, &query, n).unwrap();
        found.into_iter().map(|hits| crate::rank::order::top(hits, n)).collect()
    }

    fn all(words: &Words, query: &str) -> Vec<Scored<u32>> {
        best(&[(words, None)], query, 100).remove(0)
    }

    /// BM25 as its definition has it (Robertson and Zaragoza 2009), over lower-cased words.
    fn bm25(texts: &[&str], query: &str) -> Vec<f64> {
        let words = |text: &str| -> Vec<String> {
            text.to_lowercase()
                .split(|c: char| !c.is_alphanumeric())
                .filter(|w| !w.is_empty())
                .map(str::to_owned)
                .collect()
        };
        let documents: Vec<Vec<String>> = texts.iter().map(|text| words(text)).collect();
        let n = documents.len() as f64;
        let average = documents.iter().map(Vec::len).sum::<usize>() as f64 / n;
        let term_score = |document: &[String], term: &String| {
            let frequency = document.iter().filter(|word| *word == term).count() as f64;
            let containing = documents.iter().filter(|d| d.contains(term)).count() as f64;
            let idf = (1.0 + (n - containing + 0.5) / (containing + 0.5)).ln();
            let length = document.len() as f64 / average;
            idf * frequency * 2.2 / (frequency + 1.2 * (0.25 + 0.75 * length))
        };
        documents.iter().map(|d| words(query).iter().map(|term| term_score(d, term)).sum()).collect()
    }

    const TEXTS: [&str; 5] = [
        "The tomatoes went in on the third of May",
        "Tomatoes, tomatoes!",
        "We should talk about the garden",
        "",
        "Über den Garten sprechen wir im Mai",
    ];

    #[test]
    fn scores_are_bm25() {
        for query in ["tomatoes", "the GARDEN", "über mai tomatoes", "nothing here"] {
            let expected = bm25(&TEXTS, query);
            let found = all(&build(&TEXTS), query);
            assert_eq!(found.len(), expected.iter().filter(|s| **s > 0.0).count(), "{query}");
            for hit in found {
                assert!((hit.score - expected[hit.id as usize]).abs() < 1e-5, "{query} {hit:?} {expected:?}");
            }
        }
    }

    #[test]
    fn what_is_left_after_a_merge_scores_as_if_built_at_once() {
        let parts = [build(&TEXTS[..2]), build(&TEXTS[2..])];
        let merged = Words::merge(&[(&parts[0], &[true, false]), (&parts[1], &[false, true, true])]).unwrap();
        assert_eq!(merged.texts(), 3);
        assert_eq!(
            all(&merged, "the tomatoes garden"),
            all(&build(&[TEXTS[0], TEXTS[3], TEXTS[4]]), "the tomatoes garden")
        );
    }

    #[test]
    fn saved_words_are_the_words() {
        let words = build(&TEXTS);
        let again = Words::from_files(&words.to_files().unwrap()).unwrap();
        assert_eq!((again.texts(), all(&again, "the tomatoes")), (words.texts(), all(&words, "the tomatoes")));
    }

    #[test]
    fn two_stores_score_as_one() {
        let whole = all(&build(&TEXTS), "the tomatoes");
        let (a, b) = (build(&TEXTS[..1]), build(&TEXTS[1..]));
        let parts = best(&[(&a, None), (&b, None)], "the tomatoes", 100);
        let mut scores: Vec<f64> = parts.iter().flatten().map(|hit| hit.score).collect();
        scores.sort_by(|x, y| y.total_cmp(x));
        assert_eq!(scores, whole.iter().map(|hit| hit.score).collect::<Vec<f64>>());
    }

    #[test]
    fn a_query_without_words_finds_nothing() {
        for query in ["", "   ", "🙂 ?!"] {
            assert!(all(&build(&TEXTS), query).is_empty());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        /// Against BM25 of every text: the best n of the allowed ones, whichever way they were looked up, and those that tie.
        #[test]
        fn the_best_allowed_texts_are_found(
            texts in prop::collection::vec(prop::collection::vec(0usize..12, 1..6), 1..300),
            query in prop::collection::vec(0usize..14, 1..5), n in 1usize..40, every in 1usize..40)
        {
            const VOCABULARY: [&str; 14] =
                ["a", "a", "a", "b", "b", "c", "d", "e", "f", "g", "h", "i", "nowhere", "x"];
            let sentence = |words: &Vec<usize>| words.iter().map(|&w| VOCABULARY[w]).collect::<Vec<_>>().join(" ");
            let texts: Vec<String> = texts.iter().map(sentence).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let allowed: Vec<bool> = (0..texts.len()).map(|i| i % every == 0).collect();
            let mut words: Vec<usize> = query;
            words.sort_unstable_by_key(|&w| VOCABULARY[w]);
            words.dedup_by_key(|w| VOCABULARY[*w]);
            let query = sentence(&words);
            let expected: Vec<Scored<u32>> = bm25(&texts, &query).into_iter().enumerate()
                .filter(|(i, score)| allowed[*i] && *score > 0.0)
                .map(|(i, score)| Scored { id: i as u32, score }).collect();
            let expected = crate::rank::order::top(expected, n);
            let found = best(&[(&build(&texts), Some(&allowed))], &query, n).remove(0);
            prop_assert_eq!(found.len(), expected.len());
            for (got, want) in found.iter().zip(&expected) {
                prop_assert!((got.score - want.score).abs() < 1e-4, "{:?} {:?}", got, want);
                prop_assert!(allowed[got.id as usize]);
            }
        }
    }
}
