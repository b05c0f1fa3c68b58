//! The workflow service: `forebay flow serve` starts and watches Snakemake runs, which outlive
//! login sessions.
//!
//! Guarantees:
//! - A run continues while the service is dead: the run's Snakemake has its own session ([`keep`]).
//!   The next service adopts the run, or starts it again if it has ended without an exit code
//!   ([`engine`]).
//! - Records are replaced in one step and synced ([`records`]). One service at a time uses a state
//!   directory.
//! - The service accesses a user's files only with that user's rights ([`account`]), and never
//!   through symbolic links ([`area`]).
//! - Each request has limits of size and time ([`http`]), and a token with a scope ([`token`]).
//!   Requests that are never completed don't keep other users from being served ([`admission`]).
//!
//! [`api`] has the table of all routes, from which the OpenAPI document is generated. Decision:
//! 0087.

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

/// The reason for a failure: one line for the user.
pub type Result<T> = std::result::Result<T, String>;

/// Returns the current time. Seconds since 1970.
pub fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}
