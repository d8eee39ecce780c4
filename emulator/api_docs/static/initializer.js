// Starts Swagger UI on this server's own description.

// Tags that few readers look for; they start closed.
const CLOSED_TAGS = ["Endpoints", "Aliases", "Console", "Workers"];

/** A plugin: Swagger UI's `docExpansion` opens all tags or none, this excepts some. */
function closeTags() {
  const isClosed = ([kind, tag]) => kind === "operations-tag" && CLOSED_TAGS.includes(tag);
  const isShown = (original) => (state, thing, byDefault) =>
    original(state, thing, byDefault && !(Array.isArray(thing) && isClosed(thing)));
  return { statePlugins: { layout: { wrapSelectors: { isShown } } } };
}

const ui = SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  deepLinking: true,
  // The validator badge would send the description's address to swagger.io.
  validatorUrl: null,
  defaultModelsExpandDepth: 0,
  defaultModelExpandDepth: 2,
  displayRequestDuration: true,
  filter: true,
  tryItOutEnabled: true,
  plugins: [closeTags],
  onComplete: () => {
    // The key that was entered in the console, in this tab.
    const key = sessionStorage.getItem("api-key");
    if (key !== null) ui.preauthorizeApiKey("key", key);
  },
});
