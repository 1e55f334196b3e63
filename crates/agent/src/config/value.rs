//! Values as they are written in the file.

use std::fmt;

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, de};
use stoker_store::{DrainPolicy, UserName};

use crate::check_url;
use crate::size;

/// Bytes, written as `64GiB` or as a plain number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size(pub u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size, such as \"64GiB\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
                size::parse(text).map(Size).map_err(|words| E::custom(format!("\"{text}\": {words}")))
            }

            fn visit_i64<E: Error>(self, bytes: i64) -> Result<Size, E> {
                u64::try_from(bytes).map(Size).map_err(|_| E::invalid_value(Unexpected::Signed(bytes), &self))
            }
        }
        deserializer.deserialize_any(SizeVisitor)
    }
}

/// A number of something that cannot be less than nothing.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Amount(pub f64);

impl Amount {
    /// The number; zero stands for none.
    pub fn set(self) -> Option<f64> {
        (self.0 > 0.0).then_some(self.0)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Amount, D::Error> {
        let value = f64::deserialize(deserializer)?;
        match value.is_finite() && value >= 0.0 {
            true => Ok(Amount(value)),
            false => Err(D::Error::invalid_value(Unexpected::Float(value), &"a number from 0 on")),
        }
    }
}

/// Where a page or a webhook is.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct WebUrl(pub String);

impl TryFrom<String> for WebUrl {
    type Error = String;

    fn try_from(text: String) -> Result<WebUrl, String> {
        check_url(&text).map(|()| WebUrl(text))
    }
}

/// A part of all: from none to everything.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Share(pub f64);

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Share, D::Error> {
        let value = f64::deserialize(deserializer)?;
        match (0.0..=1.0).contains(&value) {
            true => Ok(Share(value)),
            false => Err(D::Error::invalid_value(Unexpected::Float(value), &"a number from 0 to 1")),
        }
    }
}

/// Where a broker of Kafka is: `host:port`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Broker(pub String);

impl TryFrom<String> for Broker {
    type Error = String;

    fn try_from(text: String) -> Result<Broker, String> {
        let is_sane = |(host, port): (&str, &str)| {
            !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok_and(|port| port > 0)
        };
        match text.rsplit_once(':').is_some_and(is_sane) {
            true => Ok(Broker(text)),
            false => Err(format!("`{text}` is not a broker, such as \"kafka-1:9092\"")),
        }
    }
}

/// A topic of Kafka.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct TopicName(pub String);

impl TryFrom<String> for TopicName {
    type Error = String;

    fn try_from(text: String) -> Result<TopicName, String> {
        let is_sane = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        match !text.is_empty()
            && text.len() <= 249
            && text.bytes().all(is_sane)
            && !text.bytes().all(|byte| byte == b'.')
        {
            true => Ok(TopicName(text)),
            false => Err(format!("`{text}` is not a topic: letters, digits, `.`, `_` and `-`, at most 249")),
        }
    }
}

/// A value, or the word `auto`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Auto<T> {
    /// Chosen by the program.
    #[default]
    Auto,
    /// Chosen by a person.
    Set(T),
}

impl<T: Copy> Auto<T> {
    /// What a person chose.
    pub fn get(&self) -> Option<T> {
        match self {
            Auto::Auto => None,
            Auto::Set(value) => Some(*value),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Auto<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Auto<T>, D::Error> {
        struct AutoVisitor<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for AutoVisitor<T> {
            type Value = Auto<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\" or a value")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Auto<T>, E> {
                if text == "auto" {
                    return Ok(Auto::Auto);
                }
                T::deserialize(de::IntoDeserializer::<E>::into_deserializer(text)).map(Auto::Set)
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Auto<T>, E> {
                T::deserialize(de::IntoDeserializer::<E>::into_deserializer(value)).map(Auto::Set)
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Auto<T>, E> {
                T::deserialize(de::IntoDeserializer::<E>::into_deserializer(value)).map(Auto::Set)
            }
        }
        deserializer.deserialize_any(AutoVisitor(std::marker::PhantomData))
    }
}

/// When files leave for the lake, in one string.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drain(pub DrainPolicy);

impl From<Drain> for DrainPolicy {
    fn from(drain: Drain) -> DrainPolicy {
        drain.0
    }
}

impl<'de> Deserialize<'de> for Drain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Drain, D::Error> {
        let text = String::deserialize(deserializer)?;
        let known = &["always", "never", "on-demand", "every N"];
        let policy = crate::parse_drain(&text).map_err(|_| D::Error::unknown_variant(&text, known))?;
        Ok(Drain(policy))
    }
}

/// A user of this machine who is one of Stoker, as `1000=acme/alice`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalUser {
    pub uid: u32,
    pub name: UserName,
}

impl<'de> Deserialize<'de> for LocalUser {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LocalUser, D::Error> {
        let text = String::deserialize(deserializer)?;
        let (uid, name) = text.split_once('=').unwrap_or((&text, ""));
        let odd =
            || D::Error::custom(format!("\"{text}\": expected UID=TENANT/USER, such as \"1000=acme/alice\""));
        let uid = uid.trim().parse().map_err(|_| odd())?;
        let name = UserName::parse(name.trim()).map_err(|fault| D::Error::custom(fault.message))?;
        Ok(LocalUser { uid, name })
    }
}

/// Text of which an empty one stands for none, so that a file can show the setting without setting it.
pub fn optional<'de, D: Deserializer<'de>, T: From<String>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(if text.is_empty() { None } else { Some(T::from(text)) })
}

/// The same for a url.
pub fn optional_url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<WebUrl>, D::Error> {
    let text: Option<String> = optional(deserializer)?;
    text.map(WebUrl::try_from).transpose().map_err(D::Error::custom)
}

/// The same for the url of a lake.
pub fn optional_lake<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text: Option<String> = optional(deserializer)?;
    match text.as_deref().map(stoker_lake::check_url) {
        Some(Err(error)) => Err(D::Error::custom(error.message)),
        _ => Ok(text),
    }
}
