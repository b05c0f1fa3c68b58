//! The REST interface. One table has all routes: requests are dispatched by it, and
//! [`crate::openapi`] generates the document from it.

use crate::admission::MAX_OF_ONE;
use crate::graph;
use crate::http::{Body, Head, Incoming, Reply, error};
use crate::openapi::{self, Operation};
use crate::records::{Parameters, Run, State, Workflow};
use crate::service::{Done, Error, NewWorkflow, Service};
use crate::token::{self, Scope};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::io::Read;

/// Maximum size of a request's body, except for uploads. Bytes.
pub const MAX_JSON_BYTES: u64 = 256 << 10;
/// Maximum size of the part of a log that one reply contains. Bytes.
pub const LOG_PIECE: u64 = 256 << 10;
/// Maximum number of bytes that are read of a run's plan, and of its events.
const EVENTS: u64 = 32 << 20;

/// An operation, and the function that carries it out.
pub struct Route {
    pub what: Operation,
    handle: fn(&mut Call<'_, '_>) -> Done<Reply>,
}

/// A request that is being carried out.
pub struct Call<'a, 'b> {
    service: &'a Service,
    head: &'a Head,
    body: &'a mut Incoming<'b>,
    user: String,
    scopes: Vec<Scope>,
    parameters: Vec<(&'static str, String)>,
}

use Scope::{Approve, Read as See, Start, Write};

pub const ROUTES: &[Route] = &[
    Route {
        what: Operation {
            method: "GET",
            path: "/api/v1/openapi.json",
            scope: None,
            about: "This document",
            takes: None,
            gives: (200, Some("Any")),
        },
        handle: |_| Ok(found(&document())),
    },
    Route {
        what: Operation {
            method: "GET",
            path: "/api/v1/me",
            scope: Some(See),
            about: "The token's user and scopes, and what the user may have",
            takes: None,
            gives: (200, Some("Me")),
        },
        handle: me,
    },
    Route {
        what: Operation {
            method: "GET",
            path: "/api/v1/workflows",
            scope: Some(See),
            about: "All workflows of the user",
            takes: None,
            gives: (200, Some("Workflows")),
        },
        handle: |c| {
            let records = c.service.records();
            let all: Vec<Value> = records.of(&c.user).map(|w| shown(w, false)).collect();
            Ok(found(&json!({ "workflows": all })))
        },
    },
    Route {
        what: Operation {
            method: "POST",
            path: "/api/v1/workflows",
            scope: Some(Write),
            about: "Makes a workflow with its directory, and a campaign if wanted",
            takes: Some("NewWorkflow"),
            gives: (201, Some("Workflow")),
        },
        handle: |c| {
            let new: NewWorkflow = c.json()?;
            let w = c.service.create(&c.user, new)?;
            Ok(with(201, &shown(&w, true)))
        },
    },
    Route {
        what: Operation {
            method: "GET",
            path: "/api/v1/workflows/{workflow}",
            scope: Some(See),
            about: "A workflow with its runs, and its campaign's use",
            takes: None,
            gives: (200, Some("Workflow")),
        },
        handle: |c| {
            let w = c.workflow()?;
            let mut value = shown(&w, true);
            if let Some(campaign) = c.service.campaign(&w) {
                value["campaign"] = campaign;
            }
            Ok(found(&value))
        },
    },
    Route {
        what: Operation {
            method: "DELETE",
            path: "/api/v1/workflows/{workflow}",
            scope: Some(Write),
            about: "Removes a workflow, its files and logs, and the campaign that was made for it",
            takes: None,
            gives: (202, None),
        },
        handle: |c| {
            c.service.delete(&c.user, c.get("workflow"))?;
            Ok(empty(202))
        },
    },
    Route {
        what: Operation {
            method: "GET",
            path: "/api/v1/workflows/{workflow}/files",
            scope: Some(See),
            about: "Files and directories of a workflow, without Snakemake's own",
            takes: None,
            gives: (200, Some("Files")),
        },
        handle: |c| {
            let listed = |area: &crate::area::Area| area.list();
            let (files, all) = c.service.with_area(&c.user, c.get("workflow"), listed)?;
            Ok(found(&json!({"files": files, "is_complete": all})))
        },
    },
    Route {
        what: Operation {
            method: "GET",
            path: "/api/v1/workflows/{workflow}/files/{path...}",
            scope: Some(See),
            about: "The bytes of a file",
            takes: None,
            gives: (200, Some("bytes")),
        },
        handle: |c| {
            let path = c.get("path");
            let get = |area: &crate::area::Area| area.get(path);
            let (file, size) = c.service.with_area(&c.user, c.get("workflow"), get)?;
            Ok(Reply {
                status: 200,
                kind: "application/octet-stream",
                // Makes a browser save the file: a workflow's files aren't shown as pages of the
                // service.
                fields: vec![("Content-Disposition", "attachment".into())],
                body: Body::File(file, size),
            })
        },
    },
    Route {
        what: Operation {
            method: "PUT",
            path: "/api/v1/workflows/{workflow}/files/{path...}",
            scope: Some(Write),
            about: "Uploads a file; it is replaced as a whole",
            takes: Some("bytes"),
            gives: (204, None),
        },
        handle: |c| {
            let Some(size) = c.head.length else {
                return Err(Error::new(411, "send the file's length, in Content-Length"));
            };
            let (workflow, path) = (c.get("workflow").to_owned(), c.get("path").to_owned());
            let from: &mut dyn Read = c.body;
            c.service.upload(&c.user, &workflow, &path, from, size)?;
            Ok(empty(204))
        },
    },
    Route {
        what: Operation {
            method: "DELETE",
            path: "/api/v1/workflows/{workflow}/files/{path...}",
            scope: Some(Write),
            about: "Removes a file, a link, or an empty directory",
            takes: None,
            gives: (204, None),
        },
        handle: |c| {
            c.service
                .remove_file(&c.user, c.get("workflow"), c.get("path"))?;
            Ok(empty(204))
        },
    },
    Route {
        what: Operation {
            method: "POST",
            path: "/api/v1/workflows/{workflow}/runs",
            scope: Some(Start),
            about: "Starts a run. With a header Idempotency-Key, a repeated request starts nothing and \
                gives the run that the first one has started",
            takes: Some("Parameters"),
            gives: (201, Some("Run")),
        },
        handle: |c| {
            let parameters: Parameters = match c.head.length {
                None | Some(0) => Parameters::default(),
                Some(_) => c.json()?,
            };
            let key = c.head.field("idempotency-key").map(str::to_owned);
            let name = c.get("workflow").to_owned();
            let (run, is_new) = c.service.start(&c.user, &name, parameters, key)?;
            let w = c.workflow()?;
            Ok(with(if is_new { 201 } else { 200 }, &shown_run(&w, &run)))
        },
    },
    Route {
        what: Operation {
            method: "GET",
            path: "/api/v1/workflows/{workflow}/runs/{run}",
            scope: Some(See),
            about: "A run: state, parameters, approvals",
            takes: None,
            gives: (200, Some("Run")),
        },
        handle: |c| {
            let (w, run) = c.run()?;
            Ok(found(&shown_run(&w, &run)))
        },
    },
    Route {
        what: Operation {
            method: "GET",
            path: "/api/v1/workflows/{workflow}/runs/{run}/graph",
            scope: Some(See),
            about: "The run's jobs, and which needs which",
            takes: None,
            gives: (200, Some("Graph")),
        },
        handle: |c| {
            let (w, run) = c.run()?;
            let text = |name: &str| -> Done<String> {
                let (bytes, _) = c.service.run_file(&w, run.number, name, 0, EVENTS)?;
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            };
            let graph = graph::read(&text("plan")?, &text("events")?, run.state.is_over());
            Ok(found(&json!(graph)))
        },
    },
    Route {
        what: Operation {
            method: "GET",
            path: "/api/v1/workflows/{workflow}/runs/{run}/log",
            scope: Some(See),
            about: "Snakemake's messages from an offset (`from`, in bytes; negative: before the end)",
            takes: None,
            gives: (200, Some("Log")),
        },
        handle: log,
    },
    Route {
        what: Operation {
            method: "POST",
            path: "/api/v1/workflows/{workflow}/runs/{run}/approve",
            scope: Some(Approve),
            about: "Approves a step: the run may begin this rule's jobs",
            takes: Some("Rule"),
            gives: (200, Some("Run")),
        },
        handle: |c| {
            let rule: Rule = c.json()?;
            let number = c.number()?;
            c.service
                .approve(&c.user, c.get("workflow"), number, &rule.rule)?;
            let (w, run) = c.run()?;
            Ok(found(&shown_run(&w, &run)))
        },
    },
    Route {
        what: Operation {
            method: "POST",
            path: "/api/v1/workflows/{workflow}/runs/{run}/cancel",
            scope: Some(Start),
            about: "Asks for a run's end",
            takes: None,
            gives: (202, Some("Run")),
        },
        handle: |c| {
            let number = c.number()?;
            c.service.cancel(&c.user, c.get("workflow"), number)?;
            let (w, run) = c.run()?;
            Ok(with(202, &shown_run(&w, &run)))
        },
    },
];

/// Returns the OpenAPI document of all routes.
pub fn document() -> Value {
    openapi::document(ROUTES.iter().map(|r| &r.what))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    rule: String,
}

/// Answers a request. Returns the reply, and the user for the log.
pub fn answer(service: &Service, head: &Head, body: &mut Incoming<'_>) -> (Reply, String) {
    let mut user = String::from("-");
    let reply = dispatch(service, head, body, &mut user);
    (reply.unwrap_or_else(|r| error(r.status, r.message)), user)
}

fn dispatch(
    service: &Service,
    head: &Head,
    body: &mut Incoming<'_>,
    user: &mut String,
) -> Done<Reply> {
    if head.method == "GET"
        && let Some(page) = crate::pages::find(&head.path)
    {
        return Ok(page);
    }
    let matching: Vec<_> = ROUTES
        .iter()
        .filter_map(|route| Some((route, matches(route, &head.path)?)))
        .collect();
    let route = matching.iter().find(|(r, _)| r.what.method == head.method);
    // An unknown path needs a token, too, so that a client without one can't find out which paths
    // exist.
    let needs_token = route.is_none_or(|(r, _)| r.what.scope.is_some());
    let mut scopes = Vec::new();
    if needs_token {
        let token = bearer(head)
            .and_then(|text| token::check(&service.state, text))
            .ok_or_else(|| Error::new(401, "send a valid token: Authorization: Bearer TOKEN"))?;
        service.account(&token.user)?;
        user.clone_from(&token.user);
        body.belongs_to(&token.id).map_err(|_| {
            Error::new(
                503,
                format!("{MAX_OF_ONE} requests of this token are in progress: send this one again"),
            )
        })?;
        scopes = token.scopes;
    }
    let Some((route, parameters)) = route else {
        return Err(if matching.is_empty() {
            Error::new(404, "there is nothing at this path")
        } else {
            Error::new(
                405,
                "this can't be done with that: see /api/v1/openapi.json",
            )
        });
    };
    if let Some(scope) = route.what.scope
        && !scopes.contains(&scope)
    {
        return Err(Error::new(
            403,
            format!("the token doesn't allow '{}'", scope.word()),
        ));
    }
    (route.handle)(&mut Call {
        service,
        head,
        body,
        user: user.clone(),
        scopes,
        parameters: parameters.clone(),
    })
}

fn bearer(head: &Head) -> Option<&str> {
    let (scheme, token) = head.field("authorization")?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Returns the parameters in a path, if the path matches the route.
fn matches(route: &Route, path: &[String]) -> Option<Vec<(&'static str, String)>> {
    let mut found = Vec::new();
    let mut rest = path.iter();
    for part in route.what.path.trim_start_matches('/').split('/') {
        let name = part.strip_prefix('{').and_then(|p| p.strip_suffix('}'));
        match name {
            None if rest.next()? == part => {}
            None => return None,
            Some(name) => match name.strip_suffix("...") {
                None => found.push((name, rest.next()?.clone())),
                Some(name) => {
                    let all: Vec<&str> = rest.by_ref().map(String::as_str).collect();
                    // A component can't contain an escaped '/', which would change the path.
                    if all.is_empty() || all.iter().any(|p| p.contains('/')) {
                        return None;
                    }
                    found.push((name, all.join("/")));
                }
            },
        }
    }
    rest.next().is_none().then_some(found)
}

impl Call<'_, '_> {
    fn get(&self, name: &str) -> &str {
        let found = self.parameters.iter().find(|(n, _)| *n == name);
        found.map_or("", |(_, value)| value)
    }

    fn number(&self) -> Done<u32> {
        let absent = |_| Error::new(404, "there is no such run");
        self.get("run").parse().map_err(absent)
    }

    fn workflow(&self) -> Done<Workflow> {
        self.service.workflow(&self.user, self.get("workflow"))
    }

    fn run(&self) -> Done<(Workflow, Run)> {
        let (w, number) = (self.workflow()?, self.number()?);
        match w.run(number).cloned() {
            Some(run) => Ok((w, run)),
            None => Err(Error::new(404, "there is no such run")),
        }
    }

    fn json<T: DeserializeOwned>(&mut self) -> Done<T> {
        let size = self.head.length.unwrap_or(0);
        if size > MAX_JSON_BYTES {
            return Err(Error::new(
                413,
                format!("a body of JSON has {MAX_JSON_BYTES} bytes at most"),
            ));
        }
        let mut bytes = Vec::new();
        self.body
            .read_to_end(&mut bytes)
            .map_err(|e| match e.kind() {
                std::io::ErrorKind::TimedOut => Error::new(408, "the body came too slowly"),
                std::io::ErrorKind::ConnectionAborted => Error::shed(),
                _ => Error::new(400, "the body ended early"),
            })?;
        if (bytes.len() as u64) < size {
            return Err(Error::new(400, "the body ended early"));
        }
        let bad = |e: serde_json::Error| Error::new(400, format!("the body: {e}"));
        let value: Value = serde_json::from_slice(&bytes).map_err(bad)?;
        if value.is_object() {
            serde_json::from_value(value).map_err(bad)
        } else {
            Err(Error::new(400, "the body is no object of JSON"))
        }
    }
}

fn me(c: &mut Call<'_, '_>) -> Done<Reply> {
    let limits = c.service.config.limits;
    let records = c.service.records();
    let uploads: u64 = records.of(&c.user).flat_map(|w| w.uploads.values()).sum();
    let active = |w: &Workflow| w.runs.iter().filter(|r| !r.state.is_over()).count();
    let runs: usize = records.of(&c.user).map(active).sum();
    Ok(found(&json!({
        "user": c.user, "scopes": c.scopes, "version": env!("CARGO_PKG_VERSION"),
        "runs": {"used": runs, "allowed": limits.runs},
        "uploads": {"used": uploads, "allowed": limits.uploads},
        "upload": limits.upload,
    })))
}

fn log(c: &mut Call<'_, '_>) -> Done<Reply> {
    let (w, run) = c.run()?;
    let from: i64 = match c.head.query("from") {
        None => 0,
        Some(text) => text
            .parse()
            .map_err(|_| Error::new(400, "from: this is no number of bytes"))?,
    };
    let size = c.service.run_file(&w, run.number, "log", 0, 0)?.1;
    let from = match from {
        0.. => (from as u64).min(size),
        _ => size.saturating_sub(from.unsigned_abs()),
    };
    let (bytes, size) = c.service.run_file(&w, run.number, "log", from, LOG_PIECE)?;
    let next = from + bytes.len() as u64;
    Ok(found(&json!({
        "text": String::from_utf8_lossy(&bytes), "next": next,
        "is_end": next >= size && run.state.is_over(),
    })))
}

/// Returns a workflow in the interface's format.
fn shown(w: &Workflow, with_runs: bool) -> Value {
    let runs: Vec<Value> = if with_runs {
        w.runs.iter().map(|r| shown_run(w, r)).collect()
    } else {
        w.runs.last().map(|r| shown_run(w, r)).into_iter().collect()
    };
    json!({
        "name": w.name, "owner": w.owner, "created": w.created, "state": w.state,
        "executor": w.executor, "approve": w.approve, "runs": runs,
        "campaign": w.campaign, "uploads": w.uploads.values().sum::<u64>(),
    })
}

fn shown_run(w: &Workflow, run: &Run) -> Value {
    let waits = match run.state {
        State::Waiting => w.unapproved(run),
        _ => Vec::new(),
    };
    json!({
        "workflow": w.name, "number": run.number, "state": run.state, "begun": run.begun,
        "ended": run.ended, "parameters": run.parameters, "approvals": run.approvals,
        "waits_for": waits, "attempt": run.attempt, "exit": run.exit, "message": run.message,
    })
}

fn found(value: &Value) -> Reply {
    with(200, value)
}

fn with(status: u16, value: &Value) -> Reply {
    Reply {
        status,
        kind: "application/json",
        fields: Vec::new(),
        body: Body::Bytes(value.to_string().into_bytes()),
    }
}

fn empty(status: u16) -> Reply {
    Reply {
        status,
        kind: "application/json",
        fields: Vec::new(),
        body: Body::Bytes(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Vec<String> {
        text.split('|').map(String::from).collect()
    }

    #[test]
    fn each_path_has_its_route() {
        let find = |method: &str, text: &str| {
            let found = ROUTES.iter().filter(|r| r.what.method == method);
            let mut found = found.filter_map(|r| Some((r.what.path, matches(r, &path(text))?)));
            let first = found.next();
            assert!(found.next().is_none(), "{text} has two routes");
            first
        };
        let files = "/api/v1/workflows/{workflow}/files/{path...}";
        let (route, values) = find("PUT", "api|v1|workflows|w|files|a|b").unwrap();
        assert_eq!((route, values[1].1.as_str()), (files, "a/b"));
        assert!(find("GET", "api|v1|workflows|w|files").unwrap().1.len() == 1);
        // A component with an escaped slash isn't split into two.
        assert!(find("PUT", "api|v1|workflows|w|files|../../x").is_none());
        for nothing in [
            "",
            "api",
            "api|v1",
            "api|v2|workflows",
            "api|v1|workflows|w|runs|1|x",
        ] {
            assert!(find("GET", nothing).is_none(), "{nothing}");
        }
    }

    #[test]
    fn only_the_document_needs_no_token() {
        let open: Vec<_> = ROUTES.iter().filter(|r| r.what.scope.is_none()).collect();
        assert!(open.len() == 1 && open[0].what.path.ends_with("openapi.json"));
        for route in ROUTES {
            let changes = route.what.method != "GET";
            assert_eq!(
                changes,
                route.what.scope != Some(Scope::Read) && route.what.scope.is_some()
            );
        }
    }

    #[test]
    fn the_document_has_each_route_and_schema() {
        let document = document();
        let text = document.to_string();
        for (n, _) in text.match_indices("#/components/schemas/") {
            let name: &str = text[n + 21..].split('"').next().unwrap();
            assert!(
                document["components"]["schemas"][name].is_object(),
                "{name}"
            );
        }
        let paths = document["paths"].as_object().unwrap();
        let all: usize = paths.values().map(|p| p.as_object().unwrap().len()).sum();
        assert_eq!(all, ROUTES.len());
    }

    #[test]
    fn the_reference_has_the_document() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../docs/reference/flow-openapi.json"
        );
        let kept: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert!(
            kept == document(),
            "run: forebay flow openapi > docs/reference/flow-openapi.json"
        );
    }
}
