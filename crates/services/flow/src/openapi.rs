//! Generates the interface's OpenAPI document from the table of routes.

use crate::token::Scope;
use serde_json::{Map, Value, json};

/// An operation of the interface: a method and a path.
pub struct Operation {
    pub method: &'static str,
    /// Components in braces are parameters; `{path...}` stands for all further components.
    pub path: &'static str,
    /// The scope that a token needs. None: the operation needs no token.
    pub scope: Option<Scope>,
    pub about: &'static str,
    /// The request's body: a schema's name, or `bytes`.
    pub takes: Option<&'static str>,
    /// The status of a successful reply, and the schema of its body.
    pub gives: (u16, Option<&'static str>),
}

/// Returns the OpenAPI document of these operations.
pub fn document<'a>(operations: impl Iterator<Item = &'a Operation>) -> Value {
    let mut paths = Map::new();
    for route in operations {
        let path = route.path.replace("...}", "}");
        let names = path.split('{').skip(1).filter_map(|p| p.split('}').next());
        let mut parameters: Vec<Value> = names
            .map(|name| {
                let kind = if name == "run" { "integer" } else { "string" };
                json!({"name": name, "in": "path", "required": true, "schema": {"type": kind}})
            })
            .collect();
        if path.ends_with("/log") {
            parameters.push(json!({
                "name": "from", "in": "query", "required": false, "schema": {"type": "integer"}
            }));
        }
        if route.method == "POST" && path.ends_with("/runs") {
            parameters.push(json!({
                "name": "Idempotency-Key", "in": "header", "required": false,
                "schema": {"type": "string", "maxLength": 100}
            }));
        }
        let mut done = json!({"description": "done"});
        if let Some(schema) = route.gives.1 {
            done["content"] = content(schema);
        }
        let mut operation = json!({
            "summary": route.about,
            "operationId": format!("{}_{}", route.method.to_lowercase(), words(&path)),
            "parameters": parameters,
            "responses": {
                route.gives.0.to_string(): done,
                "default": {"description": "refused", "content": content("Error")},
            },
        });
        if let Some(schema) = route.takes {
            let needed = schema != "Parameters";
            operation["requestBody"] = json!({"required": needed, "content": content(schema)});
        }
        match route.scope {
            Some(scope) => {
                operation["security"] = json!([{"token": []}]);
                operation["x-scope"] = json!(scope.word());
            }
            None => operation["security"] = json!([]),
        }
        let methods = paths.entry(path).or_insert_with(|| json!({}));
        methods[route.method.to_lowercase()] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Forebay's workflow service",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Workflows of Snakemake that run beyond any session. Times are seconds \
                since 1970, sizes bytes. Operations need a token with the scope that `x-scope` names.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas(),
        },
    })
}

/// Joins a path's components: `workflows_workflow_files` for `/api/v1/workflows/{workflow}/files`.
fn words(path: &str) -> String {
    let parts = path.trim_start_matches("/api/v1/").split('/');
    let parts: Vec<String> = parts
        .map(|p| p.replace(['{', '}'], "").replace('.', "_"))
        .collect();
    parts.join("_")
}

fn content(schema: &str) -> Value {
    match schema {
        "bytes" => json!({"application/octet-stream": {}}),
        "Any" => json!({"application/json": {}}),
        name => json!({
            "application/json": {"schema": {"$ref": format!("#/components/schemas/{name}")}}
        }),
    }
}

fn object(members: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": members, "required": required})
}

fn list(of: &str) -> Value {
    json!({"type": "array", "items": {"$ref": format!("#/components/schemas/{of}")}})
}

fn schemas() -> Value {
    let (text, number, truth) = (
        json!({"type": "string"}),
        json!({"type": "integer"}),
        json!({"type": "boolean"}),
    );
    let perhaps = |kind: &str| json!({"type": [kind, "null"]});
    let texts = json!({"type": "array", "items": text});
    let values = json!({"type": "object", "additionalProperties": text});
    let share = json!({
        "type": "object", "properties": {"used": number, "allowed": number}
    });
    let states = [
        "queued",
        "running",
        "waiting",
        "succeeded",
        "failed",
        "cancelled",
    ];
    json!({
        "Error": object(json!({"status": number, "error": text}), &["status", "error"]),
        "Me": object(json!({
            "user": text, "scopes": texts, "version": text, "runs": share, "uploads": share,
            "upload": number,
        }), &["user", "scopes", "runs", "uploads", "upload"]),
        "NewWorkflow": object(json!({
            "name": {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$"},
            "executor": {"enum": ["local", "slurm"], "default": "local"},
            "approve": texts,
            "campaign": object(json!({"name": text, "spec": text}), &[]),
        }), &["name"]),
        "Workflow": object(json!({
            "name": text, "owner": text, "created": number,
            "state": {"enum": ["making", "ready", "deleting"]},
            "executor": {"enum": ["local", "slurm"]},
            "approve": texts, "runs": list("Run"), "campaign": perhaps("object"),
            "uploads": number,
        }), &["name", "owner", "created", "state", "executor", "approve", "runs"]),
        "Workflows": object(json!({"workflows": list("Workflow")}), &["workflows"]),
        "File": object(json!({
            "path": text, "kind": {"enum": ["file", "directory", "link", "other"]},
            "size": number, "changed": number,
        }), &["path", "kind", "size", "changed"]),
        "Files": object(
            json!({"files": list("File"), "is_complete": truth}),
            &["files", "is_complete"],
        ),
        "Parameters": object(json!({
            "jobs": perhaps("integer"), "resources": values, "config": values, "targets": texts,
            "keep_going": truth,
        }), &[]),
        "Run": object(json!({
            "workflow": text, "number": number, "state": {"enum": states}, "begun": number,
            "ended": perhaps("integer"), "parameters": {"$ref": "#/components/schemas/Parameters"},
            "approvals": {"type": "array", "items": object(
                json!({"rule": text, "by": text, "at": number}), &["rule", "by", "at"])},
            "waits_for": texts, "attempt": number, "exit": perhaps("integer"), "message": text,
        }), &["workflow", "number", "state", "begun", "waits_for", "message"]),
        "Graph": object(json!({
            "jobs": {"type": "array", "items": object(json!({
                "rule": text, "wildcards": values,
                "state": {"enum": ["planned", "running", "succeeded", "failed"]},
                "begun": perhaps("integer"), "ended": perhaps("integer"), "log": texts, "output": texts,
                "layer": number,
            }), &["rule", "wildcards", "state", "layer"])},
            "edges": {"type": "array", "items": {"type": "array", "items": number}},
            "done": number, "total": number, "is_cut": truth,
        }), &["jobs", "edges", "done", "total", "is_cut"]),
        "Log": object(
            json!({"text": text, "next": number, "is_end": truth}),
            &["text", "next", "is_end"],
        ),
        "Rule": object(json!({"rule": text}), &["rule"]),
    })
}
