//! The operations of S3 that staging and origins need.

use crate::bucket::attributes::{self, Head};
use crate::bucket::client::{Body, Call, Client, header, length};
use crate::bucket::fault::{CHANGED, Fault, GARBAGE, UNKNOWN};
use crate::bucket::time;
use crate::bucket::xml::{Element, escape};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::io::Errno;
use std::io::Read;

/// Maximum number of pages of a list. A page has up to 1000 keys.
const PAGES: usize = 1_000_000;
/// An ETag that no object has.
const NO_ETAG: &str = "\"00000000000000000000000000000000\"";

/// A condition of a write on the version that it replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replaces {
    /// The key must not exist.
    Nothing,
    /// The object must have this ETag.
    Version(String),
    Anything,
}

impl Replaces {
    fn header(&self) -> Option<(String, String)> {
        match self {
            Replaces::Nothing => Some(("if-none-match".into(), "*".into())),
            Replaces::Version(etag) => Some(("if-match".into(), etag.clone())),
            Replaces::Anything => None,
        }
    }
}

/// An object in a list.
#[derive(Clone, Debug)]
pub struct Object {
    pub key: String,
    pub etag: String,
    /// Bytes.
    pub size: u64,
    /// Time of the write. Nanoseconds since 1970.
    pub modified: i128,
}

/// The objects and prefixes directly below a prefix.
#[derive(Debug, Default)]
pub struct Listed {
    pub objects: Vec<Object>,
    /// Prefixes that end in a slash. Each stands for all keys that begin with it.
    pub prefixes: Vec<String>,
}

/// An upload in parts.
#[derive(Clone, Debug)]
pub struct Upload {
    pub key: String,
    pub id: String,
}

/// A part of an upload that the server has stored.
#[derive(Clone, Debug)]
pub struct Part {
    pub number: u32,
    pub etag: String,
    /// SHA-256 of the part's bytes, in base64.
    pub sum: String,
    /// Whether the server has confirmed the sum.
    pub is_confirmed: bool,
}

/// The version of an object that a write has created.
#[derive(Clone, Debug)]
pub struct Written {
    pub etag: String,
    /// Whether the server has confirmed the SHA-256 of the object's bytes.
    pub is_confirmed: bool,
}

/// Returns a SHA-256 in the format of S3's headers: base64.
pub fn sum_text(sum: &[u8; 32]) -> String {
    STANDARD.encode(sum)
}

/// Decodes text of a list that was requested with `encoding-type=url`.
fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(b) = rest.next() {
        out.push(match b {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            b'+' => b' ',
            b => b,
        });
    }
    String::from_utf8(out).ok()
}

fn text_of(element: &Element, name: &str, is_encoded: bool) -> Result<String, Fault> {
    let text = element.get(name).unwrap_or_default();
    let decoded = if is_encoded {
        decode(text)
    } else {
        Some(text.to_owned())
    };
    decoded.ok_or_else(|| Fault::garbage(format!("a {name} of the list can't be decoded")))
}

impl Client {
    /// Requests one page of a list: up to `most` keys below `prefix`. Returns the page, and the
    /// token for requesting the next page.
    fn page(
        &self,
        prefix: &str,
        token: Option<&str>,
        most: usize,
    ) -> Result<(Listed, Option<String>), Fault> {
        let mut query = vec![
            ("list-type", "2".to_owned()),
            ("prefix", prefix.to_owned()),
            ("delimiter", "/".to_owned()),
            ("encoding-type", "url".to_owned()),
            ("max-keys", most.to_string()),
        ];
        query.extend(token.map(|token| ("continuation-token", token.to_owned())));
        let call = Call {
            method: "GET",
            query,
            ..Call::default()
        };
        // A truncated page is requested again.
        self.attempts(|| {
            let root = self.ask_once(&call)?.xml("ListBucketResult")?;
            let is_encoded = root.get("EncodingType") == Some("url");
            let object = |e: &Element| {
                let modified = e.get("LastModified").and_then(time::from_list);
                Ok(Object {
                    key: text_of(e, "Key", is_encoded)?,
                    etag: e.get("ETag").unwrap_or_default().to_owned(),
                    size: e.get("Size").and_then(|t| t.parse().ok()).unwrap_or(0),
                    modified: modified.unwrap_or(0),
                })
            };
            let objects = root.all("Contents").map(object);
            let below = root.all("CommonPrefixes");
            let listed = Listed {
                objects: objects.collect::<Result<_, Fault>>()?,
                prefixes: below
                    .map(|e| text_of(e, "Prefix", is_encoded))
                    .collect::<Result<_, Fault>>()?,
            };
            let keys = listed.objects.iter().map(|object| &object.key);
            if keys
                .chain(&listed.prefixes)
                .any(|key| !key.starts_with(prefix))
            {
                return Err(Fault::garbage("the list has keys that weren't asked for"));
            }
            let next = match root.get("IsTruncated") {
                Some("true") => {
                    let next = root
                        .get("NextContinuationToken")
                        .filter(|t| Some(*t) != token);
                    Some(next.ok_or_else(|| Fault::garbage("the list goes on, but not where"))?)
                }
                Some("false") => None,
                _ => return Err(Fault::garbage("the list doesn't say whether it goes on")),
            };
            Ok((listed, next.map(str::to_owned)))
        })
    }

    /// Lists the objects and prefixes directly below a prefix, which is empty or ends in a slash.
    ///
    /// # Errors
    /// [`Fault`]; no partial list is returned.
    pub fn list(&self, prefix: &str) -> Result<Listed, Fault> {
        let mut all = Listed::default();
        let mut token = None;
        for _ in 0..PAGES {
            let (page, next) = self.page(prefix, token.as_deref(), 1000)?;
            all.objects.extend(page.objects);
            all.prefixes.extend(page.prefixes);
            match next {
                Some(next) => token = Some(next),
                None => return Ok(all),
            }
        }
        Err(Fault::new(GARBAGE, "the list has no end"))
    }

    /// Whether there is any key below a prefix.
    pub fn has_any(&self, prefix: &str) -> Result<bool, Fault> {
        let (page, next) = self.page(prefix, None, 1)?;
        Ok(next.is_some() || !page.objects.is_empty() || !page.prefixes.is_empty())
    }

    /// Returns the attributes of an object; None if it doesn't exist.
    pub fn head(&self, key: &str) -> Result<Option<Head>, Fault> {
        let call = Call {
            method: "HEAD",
            key,
            ..Call::default()
        };
        let reply = match self.ask(&call) {
            Ok(reply) => reply,
            Err(fault) if fault.errno == Errno::NOENT => return Ok(None),
            // A reply to HEAD has no text. If listing fails, too, its error tells the reason.
            Err(fault) => {
                self.page(key, None, 1)?;
                return Err(fault);
            }
        };
        let head = attributes::head(&reply.headers, key.ends_with('/'));
        let missing = || Fault::new(GARBAGE, "the server tells no size or no ETag of the object");
        head.ok_or_else(missing).map(Some)
    }

    /// Begins to read the bytes from `start` to `end` (exclusive) of an object of `size` bytes, in
    /// its version `etag`.
    ///
    /// # Errors
    /// [`CHANGED`]: the object has another version; another [`Fault`].
    pub fn get(
        &self,
        key: &str,
        (start, end): (u64, u64),
        (etag, size): (&str, u64),
    ) -> Result<impl Read + Send + use<>, Fault> {
        let headers = vec![
            ("range".to_owned(), format!("bytes={start}-{}", end - 1)),
            ("if-match".to_owned(), etag.to_owned()),
        ];
        let call = Call {
            method: "GET",
            key,
            headers,
            ..Call::default()
        };
        let reply = self.begin(&call)?;
        let got = header(reply.headers(), "etag").unwrap_or_default();
        if got != etag {
            return Err(Fault::new(CHANGED, "the object has another version"));
        }
        let wanted = format!("bytes {start}-{}/{size}", end - 1);
        let range = header(reply.headers(), "content-range");
        let is_right = match reply.status().as_u16() {
            206 => range == Some(wanted.as_str()),
            200 => start == 0 && end == size && length(reply.headers()) == Some(size),
            _ => false,
        };
        if !is_right {
            return Err(Fault::new(
                GARBAGE,
                "the server sends another range than asked for",
            ));
        }
        Ok(reply.into_body().into_reader())
    }

    /// Writes a whole object.
    ///
    /// # Errors
    /// [`CHANGED`]: the condition `replaces` doesn't hold; another [`Fault`].
    pub fn put(
        &self,
        key: &str,
        bytes: &[u8],
        headers: &[(String, String)],
        replaces: &Replaces,
    ) -> Result<Written, Fault> {
        let body = Body::new(bytes);
        let sum = sum_text(&body.sum);
        let mut headers = headers.to_vec();
        headers.push(("x-amz-checksum-sha256".to_owned(), sum.clone()));
        headers.extend(replaces.header());
        let call = Call {
            method: "PUT",
            key,
            headers,
            body: Some(body),
            ..Call::default()
        };
        let reply = self.ask(&call)?;
        Ok(Written {
            etag: reply.header("etag").unwrap_or_default().to_owned(),
            is_confirmed: reply.header("x-amz-checksum-sha256") == Some(sum.as_str()),
        })
    }

    /// Begins an upload in parts.
    pub fn begin_upload(&self, key: &str, headers: &[(String, String)]) -> Result<Upload, Fault> {
        let mut headers = headers.to_vec();
        headers.push(("x-amz-checksum-algorithm".to_owned(), "SHA256".to_owned()));
        self.begin_plain_upload(key, headers)
    }

    /// Begins an upload in parts that have no checksums.
    pub fn begin_plain_upload(
        &self,
        key: &str,
        headers: Vec<(String, String)>,
    ) -> Result<Upload, Fault> {
        let query = vec![("uploads", String::new())];
        let body = Some(Body::new(b""));
        let reply = self.ask(&Call {
            method: "POST",
            key,
            query,
            headers,
            body,
        })?;
        let root = reply.xml("InitiateMultipartUploadResult")?;
        match root.get("UploadId") {
            Some(id) if !id.is_empty() => Ok(Upload {
                key: key.to_owned(),
                id: id.to_owned(),
            }),
            _ => Err(Fault::new(GARBAGE, "the server names no upload")),
        }
    }

    /// Uploads a part.
    pub fn put_part(&self, upload: &Upload, number: u32, bytes: &[u8]) -> Result<Part, Fault> {
        let body = Body::new(bytes);
        let sum = sum_text(&body.sum);
        let query = vec![
            ("partNumber", number.to_string()),
            ("uploadId", upload.id.clone()),
        ];
        let headers = vec![("x-amz-checksum-sha256".to_owned(), sum.clone())];
        let key = &upload.key;
        let reply = self.ask(&Call {
            method: "PUT",
            key,
            query,
            headers,
            body: Some(body),
        })?;
        let etag = reply.header("etag").unwrap_or_default().to_owned();
        if etag.is_empty() {
            return Err(Fault::new(GARBAGE, "the server gives a part no ETag"));
        }
        let is_confirmed = reply.header("x-amz-checksum-sha256") == Some(sum.as_str());
        Ok(Part {
            number,
            etag,
            sum,
            is_confirmed,
        })
    }

    /// Makes the server copy the bytes from `start` to `end` (exclusive) of another object's
    /// version `etag` into a part of an upload.
    ///
    /// # Errors
    /// [`CHANGED`]: the other object has another version; another [`Fault`].
    pub fn copy_part(
        &self,
        upload: &Upload,
        number: u32,
        (from, etag): (&str, &str),
        (start, end): (u64, u64),
    ) -> Result<Part, Fault> {
        let query = vec![
            ("partNumber", number.to_string()),
            ("uploadId", upload.id.clone()),
        ];
        let range = format!("bytes={start}-{}", end - 1);
        let headers = vec![
            ("x-amz-copy-source".to_owned(), self.source(from)),
            ("x-amz-copy-source-if-match".to_owned(), etag.to_owned()),
            ("x-amz-copy-source-range".to_owned(), range),
        ];
        let call = Call {
            method: "PUT",
            key: &upload.key,
            query,
            headers,
            body: Some(Body::new(b"")),
        };
        let root = self.ask(&call)?.xml("CopyPartResult")?;
        Ok(Part {
            number,
            etag: root.get("ETag").unwrap_or_default().to_owned(),
            sum: String::new(),
            is_confirmed: false,
        })
    }

    /// Returns the header's value that names an object of this bucket as the source of a copy.
    fn source(&self, key: &str) -> String {
        let path = format!("{}/{key}", self.bucket);
        crate::bucket::sign::encode(path.as_bytes(), true)
    }

    /// Ends an upload: the object exists from now on. Returns its ETag.
    ///
    /// # Errors
    /// [`CHANGED`]: the condition `replaces` doesn't hold; another [`Fault`].
    pub fn end_upload(
        &self,
        upload: &Upload,
        parts: &[Part],
        replaces: &Replaces,
    ) -> Result<String, Fault> {
        let mut text = "<CompleteMultipartUpload>".to_owned();
        for part in parts {
            let (number, etag, sum) = (part.number, escape(&part.etag), &part.sum);
            text += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag>");
            if part.is_confirmed {
                text += &format!("<ChecksumSHA256>{sum}</ChecksumSHA256>");
            }
            text += "</Part>";
        }
        text += "</CompleteMultipartUpload>";
        let call = Call {
            method: "POST",
            key: &upload.key,
            query: vec![("uploadId", upload.id.clone())],
            headers: replaces.header().into_iter().collect(),
            body: Some(Body::new(text.as_bytes())),
        };
        self.attempts(|| {
            let reply = self.ask_once(&call)?;
            // The server sends the status before it does the work. An error can follow in the body.
            if let Ok(error) = reply.xml("Error") {
                let get = |name| error.get(name).unwrap_or_default();
                let status = match get("Code") {
                    "PreconditionFailed" | "ConditionalRequestConflict" => 412,
                    _ => 500,
                };
                return Err(Fault::of_reply(status, get("Code"), get("Message"), None));
            }
            let root = reply.xml("CompleteMultipartUploadResult")?;
            Ok(root.get("ETag").unwrap_or_default().to_owned())
        })
    }

    /// Cancels an upload. The server removes its parts.
    ///
    /// # Errors
    /// [`Fault`]. A missing upload is no error.
    pub fn abort(&self, upload: &Upload) -> Result<(), Fault> {
        let query = vec![("uploadId", upload.id.clone())];
        let call = Call {
            method: "DELETE",
            key: &upload.key,
            query,
            ..Call::default()
        };
        match self.ask(&call) {
            Err(fault) if fault.errno != Errno::NOENT => Err(fault),
            _ => Ok(()),
        }
    }

    /// Returns the uploads in progress below a prefix.
    pub fn uploads(&self, prefix: &str) -> Result<Vec<Upload>, Fault> {
        let mut all = Vec::new();
        let mut from = (String::new(), String::new());
        for _ in 0..PAGES {
            let mut query = vec![
                ("uploads", String::new()),
                ("prefix", prefix.to_owned()),
                ("encoding-type", "url".to_owned()),
            ];
            if !from.0.is_empty() {
                query.push(("key-marker", from.0.clone()));
                query.push(("upload-id-marker", from.1.clone()));
            }
            let call = Call {
                method: "GET",
                query,
                ..Call::default()
            };
            let root = self.ask(&call)?.xml("ListMultipartUploadsResult")?;
            let is_encoded = root.get("EncodingType") == Some("url");
            for e in root.all("Upload") {
                let key = text_of(e, "Key", is_encoded)?;
                let id = e.get("UploadId").unwrap_or_default().to_owned();
                if key.starts_with(prefix) && !id.is_empty() {
                    all.push(Upload { key, id });
                }
            }
            let next = text_of(&root, "NextKeyMarker", is_encoded)?;
            let next = (
                next,
                root.get("NextUploadIdMarker")
                    .unwrap_or_default()
                    .to_owned(),
            );
            if root.get("IsTruncated") != Some("true") || next == from || next.0.is_empty() {
                return Ok(all);
            }
            from = next;
        }
        Ok(all)
    }

    /// Makes the server copy the version `etag` of an object within the bucket, with other
    /// attributes if `headers` are given. Returns the copy's ETag.
    ///
    /// # Errors
    /// [`CHANGED`]: the source has another version; another [`Fault`].
    pub fn copy(
        &self,
        from: &str,
        etag: &str,
        to: &str,
        headers: Option<&[(String, String)]>,
    ) -> Result<String, Fault> {
        let source = self.source(from);
        let directive = if headers.is_some() { "REPLACE" } else { "COPY" };
        let mut headers = headers.unwrap_or_default().to_vec();
        headers.push(("x-amz-copy-source".to_owned(), source));
        headers.push(("x-amz-metadata-directive".to_owned(), directive.to_owned()));
        headers.push(("x-amz-copy-source-if-match".to_owned(), etag.to_owned()));
        let body = Some(Body::new(b""));
        let call = Call {
            method: "PUT",
            key: to,
            headers,
            body,
            ..Call::default()
        };
        let root = self.ask(&call)?.xml("CopyObjectResult")?;
        Ok(root.get("ETag").unwrap_or_default().to_owned())
    }

    /// Removes an object in its version `etag`. A missing one is no error. Servers without
    /// conditional deletes remove any version ([`Client::deletes_conditionally`]).
    ///
    /// # Errors
    /// [`CHANGED`]: the object has another version; another [`Fault`].
    pub fn delete_version(&self, key: &str, etag: &str) -> Result<(), Fault> {
        let headers = vec![("if-match".to_owned(), etag.to_owned())];
        match self.ask(&Call {
            method: "DELETE",
            key,
            headers,
            ..Call::default()
        }) {
            Err(fault) if fault.errno != Errno::NOENT => Err(fault),
            _ => Ok(()),
        }
    }

    /// Whether the server has conditional deletes. Other servers ignore the condition, and don't
    /// say so. So the server is asked to remove a version of `probe` that doesn't exist; `probe` is
    /// an object that is made for this.
    pub fn deletes_conditionally(&self, probe: &str) -> Result<bool, Fault> {
        self.put(probe, b"", &[], &Replaces::Anything)?;
        let removed = self.delete_version(probe, NO_ETAG);
        if removed.is_err() {
            self.delete(probe)?;
        }
        Ok(removed.is_err_and(|fault| fault.errno == CHANGED))
    }

    /// Removes an object. A missing one is no error.
    pub fn delete(&self, key: &str) -> Result<(), Fault> {
        match self.ask(&Call {
            method: "DELETE",
            key,
            ..Call::default()
        }) {
            Err(fault) if fault.errno != Errno::NOENT => Err(fault),
            _ => Ok(()),
        }
    }
}

/// Whether a fault means that the server doesn't support conditions on writes.
pub fn without_conditions(fault: &Fault, replaces: &Replaces) -> bool {
    fault.errno == UNKNOWN && *replaces != Replaces::Anything
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_keys() {
        assert_eq!(decode("a%20b%C3%A4%25+c").as_deref(), Some("a bä% c"));
        for bad in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(decode(bad), None);
        }
    }
}
