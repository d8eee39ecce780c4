// Made by swagger-ui-bundle.js, which the page /docs loads first.
declare const SwaggerUIBundle: any;
