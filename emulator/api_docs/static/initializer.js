// Starts Swagger UI on this server's own description.

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
    // The key that was entered in the console, in this tab.
    const key = sessionStorage.getItem("api-key");
    if (key !== null) ui.preauthorizeApiKey("key", key);
  },
});
