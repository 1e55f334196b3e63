// A certified OpenID provider with the users, groups and clients of the test. Says `ready PORT` when it listens.
//
//   node provider.mjs '{"port": 0, "console": "http://127.0.0.1:9001/login/callback", "keys": ["RS256", "ES256"], "generation": "a"}'
//
// Robots get tokens by client credentials: access tokens in the form of JWTs, for the audience `stoker`. People log in by the provider's own page;
// whatever password they type is right.

import { generateKeyPairSync } from "node:crypto";
import http from "node:http";
import Provider from "oidc-provider";

const told = JSON.parse(process.argv[2]);
const PAIRS = { RS256: ["rsa", { modulusLength: 2048 }], ES256: ["ec", { namedCurve: "P-256" }], EdDSA: ["ed25519", {}] };
const GROUPS = { trainer: ["ml"], platform: ["platform", "ml"], stranger: ["other"] };

const keys = told.keys.map((alg) => {
  const { privateKey } = generateKeyPairSync(...PAIRS[alg]);
  return { ...privateKey.export({ format: "jwk" }), kid: `${told.generation}-${alg}`, alg, use: "sig" };
});

const robot = (name, alg) => ({
  client_id: name,
  client_secret: "secret-of-" + name,
  grant_types: ["client_credentials"],
  redirect_uris: [],
  response_types: [],
  id_token_signed_response_alg: alg,
});

const server = http.createServer();
server.listen(told.port, "127.0.0.1", () => {
  const port = server.address().port;
  const provider = new Provider(`http://127.0.0.1:${port}`, {
    jwks: { keys },
    clients: [
      robot("trainer", told.keys[0]),
      robot("stranger", told.keys[0]),
      {
        client_id: "console",
        client_secret: "secret-of-console",
        grant_types: ["authorization_code"],
        response_types: ["code"],
        redirect_uris: [told.console],
        id_token_signed_response_alg: told.keys[0],
      },
    ],
    claims: { openid: ["sub"], profile: ["groups", "preferred_username"] },
    conformIdTokenClaims: false,
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({ sub: id, groups: GROUPS[id] ?? [], preferred_username: id }),
    }),
    extraTokenClaims: (_, token) => ({ groups: GROUPS[token.clientId] ?? [] }),
    features: {
      clientCredentials: { enabled: true },
      devInteractions: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => "urn:stoker",
        useGrantedResource: () => true,
        getResourceServerInfo: () => ({
          scope: "",
          audience: "stoker",
          accessTokenTTL: told.seconds ?? 300,
          accessTokenFormat: "jwt",
          jwt: { sign: { alg: told.sign ?? told.keys[0] } },
        }),
      },
    },
    pkce: { required: () => true },
    cookies: { keys: ["of this test"] },
  });
  server.on("request", provider.callback());
  console.log(`ready ${port}`);
});
