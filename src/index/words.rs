//! Words, by tantivy: an inverted index in memory, scored with BM25.

use tantivy::collector::{Collector, SegmentCollector};
use tantivy::columnar::Column;
use tantivy::query::{Bm25StatisticsProvider, BooleanQuery, Occur, Query, TermQuery};
use tantivy::schema::{FAST, Field, IndexRecordOption, Schema, TextFieldIndexing, TextOptions};
use tantivy::{DocId, Index, Score, Searcher, SegmentOrdinal, SegmentReader, TantivyDocument, Term};

use super::Slot;
use crate::error::Result;
use crate::rank::order::Scored;

/// tantivy's smallest budget for a writer, in bytes.
const WRITER_BYTES: usize = 15_000_000;

const SLOT: &str = "slot";

/// The words of a store. Texts are only ever added; when one changes or goes, the index is built anew, since BM25's
/// statistics would count the old one until its segment is merged away.
#[derive(Clone)]
pub struct Words {
    index: Index,
    searcher: Searcher,
    text: Field,
    slot: Field,
}

impl Words {
    pub fn build<'a>(texts: impl IntoIterator<Item = (Slot, &'a str)>) -> Result<Self> {
        let mut schema = Schema::builder();
        let indexing = TextFieldIndexing::default().set_index_option(IndexRecordOption::WithFreqs);
        let text = schema.add_text_field("text", TextOptions::default().set_indexing_options(indexing));
        let slot = schema.add_u64_field(SLOT, FAST);
        let index = Index::create_in_ram(schema.build());
        let searcher = index.reader()?.searcher();
        let mut words = Self { index, searcher, text, slot };
        words.add(texts)?;
        Ok(words)
    }

    /// The same words and more. The value it is called on still sees only what it saw before.
    pub fn extended<'a>(&self, texts: impl IntoIterator<Item = (Slot, &'a str)>) -> Result<Self> {
        let mut words = self.clone();
        words.add(texts)?;
        Ok(words)
    }

    fn add<'a>(&mut self, texts: impl IntoIterator<Item = (Slot, &'a str)>) -> Result<()> {
        let mut writer = self.index.writer_with_num_threads::<TantivyDocument>(1, WRITER_BYTES)?;
        for (slot, text) in texts {
            let mut document = TantivyDocument::new();
            document.add_text(self.text, text);
            document.add_u64(self.slot, u64::from(slot.0));
            writer.add_document(document)?;
        }
        writer.commit()?;
        writer.wait_merging_threads()?;
        self.searcher = self.index.reader()?.searcher();
        Ok(())
    }

    /// The distinct words of a query, as terms of the index.
    fn terms(&self, query: &str) -> Result<Vec<Term>> {
        let mut analyzer = self.index.tokenizer_for_field(self.text)?;
        let mut stream = analyzer.token_stream(query);
        let mut terms = Vec::new();
        while stream.advance() {
            let term = Term::from_field_text(self.text, &stream.token().text);
            if !terms.contains(&term) {
                terms.push(term);
            }
        }
        Ok(terms)
    }
}

/// BM25 statistics over several stores, so that their scores can be compared.
struct Union<'a>(&'a [&'a Words]);

impl Union<'_> {
    fn sum(&self, of: impl Fn(&Searcher) -> tantivy::Result<u64>) -> tantivy::Result<u64> {
        self.0.iter().map(|words| of(&words.searcher)).sum()
    }
}

impl Bm25StatisticsProvider for Union<'_> {
    fn total_num_tokens(&self, field: Field) -> tantivy::Result<u64> {
        self.sum(|searcher| searcher.total_num_tokens(field))
    }

    fn total_num_docs(&self) -> tantivy::Result<u64> {
        self.sum(|searcher| searcher.total_num_docs())
    }

    fn doc_freq(&self, term: &Term) -> tantivy::Result<u64> {
        self.sum(|searcher| Bm25StatisticsProvider::doc_freq(searcher, term))
    }
}

/// Every text of each store that shares a word with the query, with its BM25 score (k₁ = 1.2, b = .75) under the statistics
/// of all the stores together. In no particular order.
pub fn search(stores: &[&Words], query: &str) -> Result<Vec<Vec<Scored<Slot>>>> {
    let statistics = Union(stores);
    stores
        .iter()
        .map(|words| {
            let of_term = |term| -> (Occur, Box<dyn Query>) {
                (Occur::Should, Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs)))
            };
            let any = BooleanQuery::new(words.terms(query)?.into_iter().map(of_term).collect());
            Ok(words.searcher.search_with_statistics_provider(&any, &Everything, &statistics)?)
        })
        .collect()
}

/// Collects all matches with their slots.
struct Everything;

struct SegmentMatches {
    slots: Column<u64>,
    matches: Vec<Scored<Slot>>,
}

impl Collector for Everything {
    type Fruit = Vec<Scored<Slot>>;
    type Child = SegmentMatches;

    fn for_segment(&self, _: SegmentOrdinal, segment: &SegmentReader) -> tantivy::Result<SegmentMatches> {
        Ok(SegmentMatches { slots: segment.fast_fields().u64(SLOT)?, matches: Vec::new() })
    }

    fn requires_scoring(&self) -> bool {
        true
    }

    fn merge_fruits(&self, fruits: Vec<Vec<Scored<Slot>>>) -> tantivy::Result<Vec<Scored<Slot>>> {
        Ok(fruits.into_iter().flatten().collect())
    }
}

impl SegmentCollector for SegmentMatches {
    type Fruit = Vec<Scored<Slot>>;

    fn collect(&mut self, document: DocId, score: Score) {
        // Every document was given a slot, and slots are 32 bits wide.
        if let Some(slot) = self.slots.first(document).and_then(|slot| u32::try_from(slot).ok()) {
            self.matches.push(Scored { id: Slot(slot), score: f64::from(score) });
        }
    }

    fn harvest(self) -> Vec<Scored<Slot>> {
        self.matches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(texts: &[&str]) -> Words {
        Words::build(texts.iter().enumerate().map(|(i, text)| (Slot(i as u32), *text))).unwrap()
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
            let found = search(&[&build(&TEXTS)], query).unwrap().remove(0);
            assert_eq!(found.len(), expected.iter().filter(|s| **s > 0.0).count(), "{query}");
            for hit in found {
                assert!((hit.score - expected[hit.id.0 as usize]).abs() < 1e-5, "{query} {hit:?} {expected:?}");
            }
        }
    }

    #[test]
    fn texts_added_later_score_as_if_built_at_once() {
        let grown = build(&TEXTS[..2]).extended((2..5).map(|i| (Slot(i as u32), TEXTS[i]))).unwrap();
        let sorted = |words: &Words| {
            let mut hits = search(&[words], "the tomatoes garden").unwrap().remove(0);
            hits.sort_by_key(|hit| hit.id);
            hits
        };
        assert_eq!(sorted(&grown), sorted(&build(&TEXTS)));
    }

    #[test]
    fn two_stores_score_as_one() {
        let whole = search(&[&build(&TEXTS)], "the tomatoes").unwrap().remove(0);
        let (a, b) = (build(&TEXTS[..1]), build(&TEXTS[1..]));
        let parts = search(&[&a, &b], "the tomatoes").unwrap();
        let mut scores: Vec<f64> = parts.iter().flatten().map(|hit| hit.score).collect();
        let mut expected: Vec<f64> = whole.iter().map(|hit| hit.score).collect();
        scores.sort_by(f64::total_cmp);
        expected.sort_by(f64::total_cmp);
        assert_eq!(scores, expected);
    }

    #[test]
    fn a_query_without_words_finds_nothing() {
        for query in ["", "   ", "🙂 ?!"] {
            assert!(search(&[&build(&TEXTS)], query).unwrap()[0].is_empty());
        }
    }
}
