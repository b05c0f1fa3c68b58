//! The workflow service: `forebay flow serve` starts and watches Snakemake runs that outlive login
//! sessions.
//!
//! Guarantees:
//! - A run goes on while the service is dead: its Snakemake has its own session ([`keep`]). The
//!   next service adopts it, or starts it again if it ended without an exit code ([`engine`]).
//! - Records are replaced as a whole and synced ([`records`]); one service has a state directory.
//! - Files of a user are touched with that user's rights only ([`account`]), and never through
//!   symbolic links ([`area`]).
//! - Each request has a bound in size and time ([`http`]), and a token with a scope ([`token`]).
//!   Unfinished requests take no place from others ([`admission`]).
//!
//! [`api`] has the table of all routes, of which the OpenAPI document is made. Decision: 0087.

pub mod account;
pub mod admission;
pub mod api;
pub mod area;
pub mod client;
pub mod config;
pub mod disk;
pub mod engine;
pub mod graph;
pub mod http;
pub mod keep;
pub mod launch;
pub mod names;
pub mod openapi;
pub mod pages;
pub mod programs;
pub mod records;
pub mod resources;
pub mod serve;
pub mod service;
pub mod slurm;
pub mod token;

/// Why something can't be done: one line for the user.
pub type Result<T> = std::result::Result<T, String>;

/// Seconds since 1970.
pub fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}
