//! A client of etcd: uses its JSON gateway (`/v3/...`) over HTTP or HTTPS, as a user or without
//! one.
//!
//! [`Client`] sends a request to one endpoint after the other, each with a time limit, and logs in
//! where that is needed. [`api`] builds requests and reads replies. [`secret`] reads passwords and
//! keys from files that no other user can read. The crate is used by `verbs` (metadata stores) and
//! `campaign` (the registry of a site).

pub mod api;
pub mod client;
mod error;
pub mod secret;

pub use client::{Client, Settings};
pub use error::{Error, Result};
