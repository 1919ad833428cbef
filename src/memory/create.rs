//! Making a store, or changing what one says of itself.

use duckdb::Connection;
use uuid::Uuid;

use super::engine::now;
use super::learn;
use super::models::ModelSettings;
use super::text::Template;
use crate::error::Result;
use crate::store::catalog::Database;
use crate::store::schema::{self, StoreConfig, StoredEncoder};

/// What is wanted of the store; what is not said stays as it is, or has its default in a new one.
#[derive(Clone, Debug, Default)]
pub struct Create {
    /// A model directory or name; the default for a new store is the setting's.
    pub encoder: Option<String>,
    pub learning: Option<String>,
    pub template: Option<String>,
    pub context: Option<usize>,
    pub code_bits: Option<usize>,
}

/// Forgetting changes no answer while the whole pool is reranked, and costs time (docs/learning.md).
const LEARNING: &str = "feedback";
const TEMPLATE: &str = "dated";
/// Wordpieces of earlier turns: 96 measured best, 192 far worse (the encoder was trained on short texts).
const CONTEXT: usize = 96;
/// 4 bits cost .2 points of NDCG@10 against 8, and half the bytes.
const CODE_BITS: usize = 4;

/// What was done.
pub struct Created {
    pub config: StoreConfig,
    /// The schema version found; 0 when the store is new.
    pub found: i64,
}

/// Makes the store if there is none, brings an older one up to date, and applies what the request says.
pub fn create(
    connection: &Connection,
    database: &Database,
    request: &Create,
    models: &ModelSettings,
) -> Result<Created> {
    database.require_writable("memory_create")?;
    if let Some(learning) = &request.learning {
        learn::mode(learning)?;
    }
    if let Some(template) = &request.template {
        Template::parse(template)?;
    }
    let exists = schema::is_store(connection, database)?;
    let encoder = match &request.encoder {
        Some(directory) => Some(models.encoder_at(directory)?),
        None if exists => None,
        None => Some(models.encoder()?),
    };
    let identity = encoder.as_ref().map(|encoder| encoder.identity());
    let base = match identity {
        _ if exists => None,
        None => None,
        Some(identity) => Some(StoreConfig {
            store_id: Uuid::now_v7().to_string(),
            encoder: StoredEncoder {
                id: identity.id.clone(),
                name: identity.name.clone(),
                dim: identity.dim,
                pooling: identity.pooling.to_owned(),
                context: request.context.unwrap_or(CONTEXT),
                code_bits: request.code_bits.unwrap_or(CODE_BITS),
            },
            learning: request.learning.clone().unwrap_or_else(|| LEARNING.to_owned()),
            template: request.template.clone().unwrap_or_else(|| TEMPLATE.to_owned()),
        }),
    };
    let found = schema::create(connection, database, base.as_ref(), now())?;
    let mut config = schema::read(connection, database)?;
    let before = config.clone();
    if let Some(identity) = identity {
        config.encoder.id.clone_from(&identity.id);
        config.encoder.name.clone_from(&identity.name);
        config.encoder.dim = identity.dim;
        config.encoder.pooling = identity.pooling.to_owned();
    }
    config.encoder.context = request.context.unwrap_or(config.encoder.context);
    config.encoder.code_bits = request.code_bits.unwrap_or(config.encoder.code_bits);
    config.learning = request.learning.clone().unwrap_or(config.learning);
    config.template = request.template.clone().unwrap_or(config.template);
    if config != before {
        schema::update(connection, database, &before, &config)?;
    }
    Ok(Created { config, found })
}
