//! The console: files that are part of the program. Without a session only the login form is shown.

use std::sync::LazyLock;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH, LOCATION};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::Full;

/// Nothing from elsewhere, nothing inline, not in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// A file of the console.
struct Asset {
    path: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
    /// Part of the login form.
    is_open: bool,
}

macro_rules! asset {
    ($path:literal, $file:literal, $kind:expr) => {
        Asset {
            path: $path,
            kind: $kind,
            bytes: include_bytes!(concat!("../console/", $file)),
            is_open: false,
        }
    };
    ($path:literal, $file:literal, $kind:expr, open) => {
        Asset {
            path: $path,
            kind: $kind,
            bytes: include_bytes!(concat!("../console/", $file)),
            is_open: true,
        }
    };
}

const ASSETS: &[Asset] = &[
    asset!("/", "index.html", HTML),
    asset!("/login", "login.html", HTML, open),
    asset!("/console/login.js", "login.js", SCRIPT, open),
    asset!("/console/theme.js", "theme.js", SCRIPT, open),
    asset!("/console/style.css", "style.css", CSS, open),
    asset!("/console/icon.svg", "icon.svg", SVG, open),
    asset!("/console/app.js", "app.js", SCRIPT),
    asset!("/console/api.js", "api.js", SCRIPT),
    asset!("/console/dom.js", "dom.js", SCRIPT),
    asset!("/console/units.js", "units.js", SCRIPT),
    asset!("/console/plot.js", "plot.js", SCRIPT),
    asset!("/console/dialog.js", "dialog.js", SCRIPT),
    asset!("/console/parts.js", "parts.js", SCRIPT),
    asset!("/console/history.js", "history.js", SCRIPT),
    asset!("/console/words.js", "words.js", SCRIPT),
    asset!("/console/lake.js", "lake.js", SCRIPT),
    asset!("/console/overview.js", "overview.js", SCRIPT),
    asset!("/console/objectives.js", "objectives.js", SCRIPT),
    asset!("/console/nodes.js", "nodes.js", SCRIPT),
    asset!("/console/catalog.js", "catalog.js", SCRIPT),
    asset!("/console/removal.js", "removal.js", SCRIPT),
    asset!("/console/volumes.js", "volumes.js", SCRIPT),
    asset!("/console/file.js", "file.js", SCRIPT),
    asset!("/console/sets.js", "sets.js", SCRIPT),
    asset!("/console/outages.js", "outages.js", SCRIPT),
    asset!("/console/reads.js", "reads.js", SCRIPT),
    asset!("/console/planner.js", "planner.js", SCRIPT),
    asset!("/console/curve.js", "curve.js", SCRIPT),
    asset!("/console/log.js", "log.js", SCRIPT),
    asset!("/console/audit.js", "audit.js", SCRIPT),
    asset!("/console/access.js", "access.js", SCRIPT),
];

/// What a browser compares before it takes a file again.
static TAGS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| {
    let tag = |asset: &Asset| {
        let text = format!("\"{:016x}-{:x}\"", fnv(asset.bytes), asset.bytes.len());
        HeaderValue::from_str(&text).expect("hex digits are a header")
    };
    ASSETS.iter().map(tag).collect()
});

/// FNV-1a: tells releases apart, and that is all that it has to.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Whether a path is one of the console.
pub fn has(path: &str) -> bool {
    ASSETS.iter().any(|asset| asset.path == path)
}

/// Whether a path is part of the login form, which anybody may see.
pub fn is_open(path: &str) -> bool {
    ASSETS.iter().any(|asset| asset.path == path && asset.is_open)
}

/// A file of the console, for somebody who logged in or not.
pub fn answer(path: &str, headers: &HeaderMap, is_known: bool) -> Response<Full<Bytes>> {
    let Some(at) = ASSETS.iter().position(|asset| asset.path == path) else {
        return empty(StatusCode::NOT_FOUND);
    };
    let (asset, tag) = (&ASSETS[at], &TAGS[at]);
    if !asset.is_open && !is_known {
        if asset.kind != HTML {
            return empty(StatusCode::UNAUTHORIZED);
        }
        let mut response = empty(StatusCode::SEE_OTHER);
        response.headers_mut().insert(LOCATION, HeaderValue::from_static("/login"));
        return response;
    }
    let is_held = headers.get(IF_NONE_MATCH).is_some_and(|held| held == tag);
    let mut response = if is_held {
        empty(StatusCode::NOT_MODIFIED)
    } else {
        Response::new(Full::new(Bytes::from_static(asset.bytes)))
    };
    response.headers_mut().insert(ETAG, tag.clone());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(asset.kind));
    // Asked for again each time, so that an upgrade of the node is one of its console, too.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn empty(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// What every answer tells browsers, the console or not.
pub fn guard(headers: &mut HeaderMap) {
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_login_form_is_shown_to_strangers() {
        for asset in ASSETS {
            let known = answer(asset.path, &HeaderMap::new(), true);
            assert_eq!(known.status(), StatusCode::OK, "{}", asset.path);
            let expect = match (asset.is_open, asset.kind) {
                (true, _) => StatusCode::OK,
                (false, HTML) => StatusCode::SEE_OTHER,
                (false, _) => StatusCode::UNAUTHORIZED,
            };
            assert_eq!(answer(asset.path, &HeaderMap::new(), false).status(), expect, "{}", asset.path);
            let held = HeaderMap::from_iter([(IF_NONE_MATCH, known.headers()[ETAG].clone())]);
            assert_eq!(answer(asset.path, &held, true).status(), StatusCode::NOT_MODIFIED);
        }
    }

    /// What a page asks for that is not in the table would be missing in the browser only.
    #[test]
    fn every_file_that_is_named_is_there() {
        for asset in ASSETS.iter().filter(|asset| asset.kind != SVG) {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            for named in text.split(['"', '\'']).filter(|word| word.starts_with("/console/")) {
                assert!(has(named), "{} names {named}", asset.path);
            }
            for named in
                text.split(['"', '\'']).filter(|word| word.starts_with("./") && word.ends_with(".js"))
            {
                let path = named.replacen("./", "/console/", 1);
                assert!(has(&path), "{} imports {named}", asset.path);
            }
            assert!(!text.contains("http://") || text.contains("http://www.w3.org"), "{}", asset.path);
            assert!(
                !text.contains("<script>") && !text.contains(" style=\""),
                "{} has inline code",
                asset.path
            );
        }
    }
}
