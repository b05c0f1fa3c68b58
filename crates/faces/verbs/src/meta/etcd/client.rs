//! Requests to etcd (`forebay-etcd`), with errors converted to those of verbs.

use super::api::{Answer, Line};
use super::place::Place;
use crate::{Error, Result};
use forebay_etcd::Settings;
use serde_json::Value;
use std::time::Duration;

pub(super) use forebay_etcd::client::COMPACTED;

/// A client of the endpoints of an etcd cluster.
pub(super) struct Client(forebay_etcd::Client);

impl From<forebay_etcd::Error> for Error {
    fn from(error: forebay_etcd::Error) -> Error {
        Error::new(error.errno(), error.to_string())
    }
}

impl Client {
    /// Returns a client of the cluster at this place.
    ///
    /// # Errors
    /// EHOSTUNREACH if no endpoint has an address.
    pub fn new(place: &Place) -> Result<Client> {
        let client = forebay_etcd::Client::new(Settings {
            endpoints: place.endpoints.clone(),
            tls: None,
            login: place.user.clone(),
            in_thread: crate::process::block_signals,
            nobody: "name a user (etcd://USER@HOST:PORT), and a file with the password \
                     (?password=FILE)",
        })?;
        Ok(Client(client))
    }

    /// As [`forebay_etcd::Client::ask`].
    ///
    /// # Errors
    /// As for [`forebay_etcd::Client::ask`].
    pub fn ask(&self, path: &str, request: &Value) -> Result<Answer> {
        Ok(self.0.ask(path, request)?)
    }

    /// As [`forebay_etcd::Client::ask_once`].
    ///
    /// # Errors
    /// As for [`forebay_etcd::Client::ask_once`].
    pub fn ask_once(&self, path: &str, request: &Value) -> forebay_etcd::Result<Answer> {
        self.0.ask_once(path, request)
    }

    /// As [`forebay_etcd::Client::lines`].
    ///
    /// # Errors
    /// As for [`forebay_etcd::Client::lines`].
    pub fn lines(
        &self,
        path: &str,
        request: &Value,
        bound: Duration,
        each: &mut dyn FnMut(Line) -> Result<bool>,
    ) -> Result<()> {
        self.0.lines(path, request, bound, each)
    }

    /// As [`forebay_etcd::Client::grant`].
    ///
    /// # Errors
    /// As for [`forebay_etcd::Client::grant`].
    pub fn grant(&self, seconds: u64) -> Result<u64> {
        Ok(self.0.grant(seconds)?)
    }

    /// As [`forebay_etcd::Client::renew`].
    ///
    /// # Errors
    /// As for [`forebay_etcd::Client::renew`].
    pub fn renew(&self, id: u64, bound: Duration) -> Result<bool> {
        Ok(self.0.renew(id, bound)?)
    }
}
