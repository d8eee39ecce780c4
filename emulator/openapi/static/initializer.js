// Starts Swagger UI on this server's own description.

// Tags that few readers look for; they start closed.
const CLOSED_TAGS = ["Endpoints", "Aliases", "Console", "Workers"];

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
  onComplete: () => {
    // `docExpansion` opens all tags or none. A deep link is left alone: closing a tag changes the
    // address.
    if (location.hash.replace("#", "") === "") {
      for (const tag of CLOSED_TAGS) ui.layoutActions.show(["operations-tag", tag], false);
      history.replaceState(null, "", location.pathname);
    }
    // The key that was entered in the console, in this tab.
    const key = sessionStorage.getItem("api-key");
    if (key !== null) ui.preauthorizeApiKey("key", key);
  },
});
